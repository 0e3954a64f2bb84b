"""The settings of a tier as text that can be put into a file.

What lives here: `snippet`. It holds no secrets: those come from the environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Final

from tieredstore.model.config import StoreConfig
from tieredstore.model.setting import facts_of, settings_of

# Said even where they are the defaults: what the tier is made of, or what the host decides.
_ALWAYS: Final = (
    *("broker_name", "cluster_name", "provider", "metadata_path"),
    *("index_slot_count", "index_item_count"),
)


def snippet(config: StoreConfig, made_with: Mapping[str, int] | None = None) -> str:
    """TOML that `StoreConfig.from_toml` reads back, but for what is secret.

    `made_with` are settings that the tier fixes, whatever `config` says: it refuses others.
    """
    fixed: dict[str, Any] = dict(made_with or {})
    config = replace(config, **fixed)
    plain = StoreConfig(broker_name=config.broker_name)
    lines = [f"[{StoreConfig.TABLE}]"]
    secret = []
    for name, spec in settings_of(config).items():
        value = getattr(config, name)
        if facts_of(spec).secret:
            secret += [f"{StoreConfig.ENV_PREFIX}{name.upper()}"] if value else []
        elif name == "metadata_path":
            lines.append(f"metadata_path = {_text(config.catalogue_path)}")
        elif name in _ALWAYS or value != getattr(plain, name):
            lines.append(f"{name} = {_text(value)}")
    if secret:
        lines.append(f"# in the environment: {', '.join(secret)}")
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        return json.dumps(value.name)
    if isinstance(value, tuple):
        return json.dumps(list(value), ensure_ascii=False)
    # What JSON escapes in a text, TOML escapes alike.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
