"""Our Java programs, built by Maven with RocketMQ's jars.

Maven fetches RocketMQ the first time.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

# RocketMQ reaches into the JDK to unmap files; newer Javas must be told to allow it.
JAVA: Final = [
    "java",
    "--add-exports",
    "java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens",
    "java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens",
    "java.base/java.nio=ALL-UNNAMED",
    "--add-opens",
    "java.base/jdk.internal.ref=ALL-UNNAMED",
]


def built(program: Path, version: str, jar: str) -> str:
    """The class path of a program with a version of RocketMQ.

    It is built once for each version, and again after a change; `target/` is not in the repository.
    """
    made = program / "target" / version / jar
    sources = [program / "pom.xml", *program.glob("src/**/*.java")]
    changed = max(source.stat().st_mtime_ns for source in sources)
    if not made.exists() or made.stat().st_mtime_ns < changed:
        goals = ["package", "dependency:copy-dependencies"]
        command = ["mvn", "-q", "-B", f"-Drocketmq.version={version}", *goals]
        subprocess.run(command, cwd=program, check=True)
    return f"{made}:{made.parent}/dependency/*"
