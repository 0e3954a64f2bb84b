"""A Spark cluster in an environment of its own, with only what a page says to install."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

from tests.spark.bring_java import java_home

# These replace a cluster's settings, above all its master.
DEFAULTS = """
spark.master local-cluster[2,1,512]
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.memory 512m
spark.executor.memory 512m
spark.ui.enabled false
spark.python.authenticate.socketTimeout 10m
"""


def fresh_python(place: Path, *, extras: str = "spark,s3,cli", lacks: str = "") -> Path:
    """An interpreter with all that these extras bring, except `tieredstore` itself."""
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    for name in _needed(Requirement(f"tieredstore[{extras}]")):
        if name == lacks:
            continue
        found = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return place / "bin" / "python"


def _needed(wanted: Requirement) -> list[str]:
    found: dict[tuple[str, str], None] = {}
    left = [wanted]
    while left:
        each = left.pop()
        for extra in ("", *sorted(each.extras)):
            if (each.name, extra) in found:
                continue
            found[each.name, extra] = None
            for line in importlib.metadata.requires(each.name) or ():
                requirement = Requirement(line)
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                    left.append(requirement)
    return [name for name in dict.fromkeys(name for name, _ in found) if name != wanted.name]


def bare_environment(place: Path, **variables: str) -> dict[str, str]:
    """What `env -i` leaves, Java, and the settings of the cluster."""
    import pyspark

    conf = place / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "spark-defaults.conf").write_text(f"{DEFAULTS}spark.local.dir {place / 'local'}\n")
    return {
        "PATH": f"{Path(pyspark.__file__).parent}/bin:{sys.base_prefix}/bin:/usr/bin:/bin",
        "HOME": str(place),
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PIP_NO_INDEX": "1",  # what pip would bring is there already
        **variables,
    }
