"""Handlers that others wrote, with the claims that are fair to each, and the command that runs them.

`install_handlers.sh` fetches them. Claims say what a program's own documentation says that it does. Where that gives a
choice, the choice favours the program; `note` says which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[2] / ".venv-handlers"
_PYTHON = INSTALLED / "bin" / "python"
_SECONDS_BETWEEN_MONITORS = "2"
_FAST_MONITOR = (
    "Pacemaker calls monitor every 10 seconds as documented. The crash test shortens a notice of 15 minutes to 17 "
    "seconds, so the pause between two calls is 2 seconds here."
)


@dataclass(frozen=True, kw_only=True)
class ForeignHandler:
    """A program that others wrote, and how to run it through the crash test."""

    name: str  # of the test, and of the baseline file
    program: str  # its package and version
    profile: str
    claims: str  # the claims file (TOML)
    command: tuple[str, ...]
    needs: Path  # a file of the program; without it the program was not fetched
    grade: str  # of the whole profile
    prepared: str = "test -e prepared"  # the probes
    recovered: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    note: str = ""  # what was chosen in its favour

    @property
    def baseline(self) -> Path:
        """Return the file with its known failures."""
        return HERE / "baselines" / f"{self.name}.toml"


def _resource_agent(
    name: str, *, debian: str, agent: str, program: str, profile: str, approves: str, grade: str
) -> ForeignHandler:
    """Return a resource agent, called by `cluster_manager`; its node is prepared while the cluster moves work away."""
    package = INSTALLED / debian
    moved_away = {
        "azure-events-az": 'grep -qs -- -1000000 "../../cluster/$(hostname).#health-azure"',
        "azure-events": 'grep -qs on "../../cluster/$(hostname).standby"',
    }[agent]
    return ForeignHandler(
        name=name,
        program=program,
        profile=profile,
        claims=f'approves = "{approves}"\n',
        command=(str(HERE / "cluster_manager"), str(package), agent, _SECONDS_BETWEEN_MONITORS),
        needs=package / "usr/lib/ocf/resource.d/heartbeat" / agent,
        grade=grade,
        prepared=moved_away,
        recovered=f"! {moved_away}",
        note=_FAST_MONITOR,
    )


def _spot_program(
    name: str, program: str, *command: str | Path, claims: str, grade: str, **environment: str
) -> ForeignHandler:
    return ForeignHandler(
        name=name,
        program=program,
        profile="spot",
        claims=claims,
        command=tuple(map(str, command)),
        needs=Path(command[0]),
        grade=grade,
        environment=environment,
    )


FOREIGN_HANDLERS: tuple[ForeignHandler, ...] = (
    _resource_agent(
        "azure-events-az-debian-12",
        debian="bookworm",
        agent="azure-events-az",
        program="azure-events-az of resource-agents 4.12.0-2 (Debian 12)",
        profile="maintenance",
        approves="own",
        grade="F",
    ),
    _resource_agent(
        "azure-events-az-debian-13",
        debian="trixie",
        agent="azure-events-az",
        program="azure-events-az of resource-agents 4.16.0-3+deb13u2 (Debian 13)",
        profile="maintenance",
        approves="own",
        grade="D",
    ),
    _resource_agent(
        "azure-events-debian-12",
        debian="bookworm",
        agent="azure-events",
        program="azure-events of resource-agents 4.12.0-2 (Debian 12)",
        profile="cluster",
        approves="scope",
        grade="C",
    ),
    _resource_agent(
        "azure-events-debian-13",
        debian="trixie",
        agent="azure-events",
        program="azure-events of resource-agents 4.16.0-3+deb13u2 (Debian 13)",
        profile="cluster",
        approves="scope",
        grade="A",
    ),
    _spot_program(
        "ai4s-jobq",
        "ai4s-jobq 3.13.1 (PyPI)",
        _PYTHON,
        HERE / "jobq_worker.py",
        grade="F",
        claims='polls-every = "2s"\n',
        AZ_BATCH_TASK_ID="crash-test",
    ),
    _spot_program(
        "dask-cloudprovider",
        "dask-cloudprovider 2025.9.0 (PyPI), with termination_offset_minutes=-1",
        _PYTHON,
        HERE / "dask_worker.py",
        "-1",
        grade="F",
        claims='polls-every = "2s"\none-shot = true\n',
    ),
    _spot_program(
        "termination-handler",
        "termination-handler 0.0.5 (PyPI), with --k8s",
        INSTALLED / "bin" / "termination-handler",
        "--k8s",
        grade="F",
        claims='polls-every = "5s"\none-shot = true\n',
        NODE_NAME="node",
    ),
)


def find_handler(name: str) -> ForeignHandler:
    """Return the handler with this name; KeyError if there is none."""
    return {handler.name: handler for handler in FOREIGN_HANDLERS}[name]
