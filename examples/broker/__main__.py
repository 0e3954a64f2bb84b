"""A name server and a broker for RocketMQ's clients, over a local store and its tier.

    python -m examples.broker --store DIRECTORY [--tier posix:DIRECTORY | s3://BUCKET/PREFIX]
    python -m examples.broker --config broker.conf | broker.toml
    python -m examples.broker --story

Clients find both at one address, 127.0.0.1:9876 unless told otherwise. After SIGTERM or Ctrl-C it
answers the requests in flight, uploads what waits, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import sys
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from examples.broker import story
from examples.broker.broker import Broker, BrokerConfig
from examples.broker.server import Limits
from tieredstore import InvalidConfigError, StoreConfig, TieredStoreError
from tieredstore.driver.metrics import Metrics
from tieredstore.local import LocalConfig
from tieredstore.model.extras import brought_by

# What RocketMQ's own file says about a broker, and no store needs.
_JAVA_KEYS: Final[Mapping[str, str]] = {
    "listenPort": "port",
    "grpcServerPort": "grpc_port",
    "brokerIP1": "address",
    "autoCreateTopicEnable": "creates_topics",
    "defaultTopicQueueNums": "default_queues",
}


def main() -> int:
    options = _options()
    if options.story:
        story.main()
        return 0
    logging.basicConfig(level=options.log.upper(), format="%(levelname)s %(name)s: %(message)s")
    try:
        broker_config, local, tier = settings(options)
        _take_descriptors()
        asyncio.run(_serve(broker_config, local, tier, options.metrics_port))
    except (TieredStoreError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print("ended")
    return 0


def settings(options: argparse.Namespace) -> tuple[BrokerConfig, LocalConfig, StoreConfig]:
    """Settings from a file, overridden by environment variables, overridden by the command line."""
    broker, local, tier = _of_file(options.config)
    local, tier = local.with_env(os.environ), tier.with_env(os.environ)
    if options.store:
        local = replace(local, store_path=options.store)
        tier = replace(tier, store_path=options.store)
    if options.tier:
        tier = replace(tier, **_tier(options.tier))
    elif not options.config and StoreConfig.ENV_PREFIX + "PROVIDER" not in os.environ:
        path = tier.path or str(Path(tier.store_path) / "tier")
        tier = replace(tier, provider="posix", path=path)
    if options.broker:
        tier = replace(tier, broker_name=options.broker)
    given = {name: getattr(options, name) for name in ("host", "port", "address", "grpc_port")}
    broker = replace(broker, **{name: value for name, value in given.items() if value is not None})
    return broker, local, tier


def _take_descriptors() -> None:
    """Take all the file descriptors that the system gives: each connection needs one, and without
    one the store cannot open its next file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS may name a limit that it does not give
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(
    config: BrokerConfig, local: LocalConfig, tier: StoreConfig, metrics_port: int | None
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = Broker(config, local, tier, metrics=_metrics(tier, metrics_port))
    await broker.open()
    if metrics_port is not None:
        _show_requests(broker)
    if broker.grpc is not None:
        print(f"gRPC on {config.told_host}:{broker.grpc_port}")
    print(f"listening on {config.told_host}:{broker.port}", flush=True)
    try:
        await stopping.wait()
    finally:
        await broker.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.broker", description="A broker for RocketMQ's clients."
    )
    parser.add_argument(
        "--config", help="a broker.conf, or a .toml with tables broker, local and tieredstore"
    )
    parser.add_argument("--store", help="directory of the local store")
    parser.add_argument("--tier", help="posix:DIRECTORY, s3://BUCKET/PREFIX or memory:")
    parser.add_argument("--broker", help="the broker's name")
    parser.add_argument("--host", help="where to listen; default 127.0.0.1")
    parser.add_argument("--port", type=int, help="default 9876; 0: any that is free")
    parser.add_argument("--grpc-port", type=int, help="for clients of gRPC; default none; 0: any")
    parser.add_argument("--address", help="IPv4 address that clients are told; default: --host")
    parser.add_argument("--metrics-port", type=int, help="show metrics for Prometheus there")
    parser.add_argument("--log", default="warning", choices=["debug", "info", "warning", "error"])
    parser.add_argument(
        "--story", action="store_true", help="tell what a broker outlives, and leave nothing behind"
    )
    options = parser.parse_args()
    if not (options.store or options.config or options.story):
        parser.error("want --store or --config")
    return options


def _of_file(path: str | None) -> tuple[BrokerConfig, LocalConfig, StoreConfig]:
    if not path:
        return BrokerConfig(), LocalConfig(), StoreConfig()
    if not path.endswith(".toml"):
        local, tier = LocalConfig.from_broker_conf(path), StoreConfig.from_broker_conf(path)
        given = {name: tier.ignored[key] for key, name in _JAVA_KEYS.items() if key in tier.ignored}
        return (
            _broker_config(path, {name: _value(name, text) for name, text in given.items()}),
            local,
            tier,
        )
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(f"{path}: is no TOML: {error}") from error
    unknown = sorted(set(document) - {"broker", "local", "tieredstore"})
    if unknown or not all(isinstance(table, dict) for table in document.values()):
        raise InvalidConfigError(f"{path}: want tables broker, local and tieredstore: {unknown}")
    local = LocalConfig.from_mapping(document.get("local", {}))
    tier = StoreConfig.from_mapping(document.get("tieredstore", {}))
    return _broker_config(path, document.get("broker", {})), local, tier


def _value(name: str, text: str) -> object:
    if name == "creates_topics":
        return text.strip().lower() == "true"
    if name in ("port", "grpc_port", "default_queues"):
        return int(text) if text.strip().isdigit() else text
    return text.strip()


def _broker_config(path: str, given: Mapping[str, Any]) -> BrokerConfig:
    kinds = {spec.name: type(getattr(BrokerConfig(), spec.name)) for spec in fields(BrokerConfig)}
    limits = {name: given[name] for name in given if name in Limits.__dataclass_fields__}
    values = {name: value for name, value in given.items() if name not in limits}
    for name, value in values.items():
        taken = (int, float) if kinds.get(name) is float else (kinds.get(name),)
        if name == "limits" or type(value) not in taken:
            raise InvalidConfigError(f"{path}: {name} is no setting of a broker, or not {value!r}")
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise InvalidConfigError(f"{path}: {name}: want a number above 0, not {value!r:.40}")
    return BrokerConfig(**values, limits=Limits(**limits))


def _tier(text: str) -> dict[str, Any]:
    """The settings of `posix:DIRECTORY`, `s3://BUCKET/PREFIX` and `memory:`."""
    kind, _, place = text.partition(":")
    if kind == "posix" and place:
        return {"provider": "posix", "path": place}
    if kind == "s3" and place.startswith("//") and place[2:]:
        bucket, _, prefix = place[2:].partition("/")
        return {"provider": "s3", "bucket": bucket, "prefix": prefix.strip("/")}
    if kind == "memory" and not place:
        return {"provider": "memory"}
    raise InvalidConfigError(f"tier: {text!r:.80} is neither posix:DIRECTORY nor s3://BUCKET")


def _metrics(tier: StoreConfig, port: int | None) -> Metrics | None:
    if port is None:
        return None
    with brought_by("prometheus"):
        from prometheus_client import start_http_server

    from tieredstore.exporters.prometheus import PrometheusMetrics

    start_http_server(port, addr="127.0.0.1")
    return PrometheusMetrics(
        {"cluster": tier.cluster_name, "node_id": tier.broker_name}, without=["path"]
    )


def _show_requests(broker: Broker) -> None:
    """Export the broker's own figures beside those of the store."""
    from collections.abc import Iterator

    from prometheus_client import REGISTRY
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    class Requests(Collector):
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            server, pulls = broker.server, broker.pulls
            if server is None or pulls is None:
                return
            asked = CounterMetricFamily(
                "broker_requests", "Requests and their answers", labels=["request", "answer"]
            )
            for labels, count in list(server.counts.items()):
                asked.add_metric(labels, count)
            yield asked
            clients = len(server.connections)
            yield GaugeMetricFamily("broker_connections", "Clients", value=clients)
            yield GaugeMetricFamily("broker_waiting", "Pulls that wait", value=pulls.waiting)
            if (front := broker.grpc) is not None:
                calls = CounterMetricFamily(
                    "broker_grpc_calls", "Calls and their statuses", labels=["call", "status"]
                )
                for labels, count in list(front.counts.items()):
                    calls.add_metric(labels, count)
                yield calls
                pops = front.receives
                yield GaugeMetricFamily("broker_pops_waiting", "Pops that wait", value=pops.waiting)
                yield GaugeMetricFamily("broker_pops_out", "Messages that are out", value=pops.out)

    REGISTRY.register(Requests())


if __name__ == "__main__":
    sys.exit(main())
