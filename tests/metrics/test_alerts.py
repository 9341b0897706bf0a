"""What is deployed beside a service fits it: every metric that alerts and the dashboard name is really shown, and
Prometheus' own tool plays the alerts.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as read

from forewarn.metadata.request_counters import RequestTotals
from forewarn.metrics.registry import WorkerMetrics
from tests.metrics.test_service_metrics import House, live_a_little
from tests.support.service_process import ServiceProcess, eventually, free_port

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "forewarn.rules.yml"
CASES = RULES.with_name("forewarn.rules.test.yml")
CONFIG = RULES.with_name("prometheus.yml")
DASHBOARD = ROOT / "deploy" / "grafana" / "forewarn.json"
DOCS = ROOT / "docs" / "metrics.md"
FLEET = '[[hosts]]\nname = "host-0"\n[[vms]]\nname = "web-0"\n'


@pytest.fixture(scope="module")
def scraped() -> str:
    """All that owner and workers tell."""
    house = House()
    try:
        house.behind = [(0.0, 0.0)]
        live_a_little(house)
        worker = WorkerMetrics(counted=RequestTotals, silent_s=lambda: 0.0)
        return house.text() + house.world.do(worker.render()).decode()
    finally:
        house.metrics.close()
        house.world.close()


@pytest.fixture(scope="module")
def shown(scraped: str) -> dict[str, set[str]]:
    """The names of all series, each with its labels."""
    found: dict[str, set[str]] = {}
    for family in read(scraped):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def expressions() -> list[str]:
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    alerts = re.findall(r"expr: (?:>-\n)?((?:.|\n {10})+)", RULES.read_text(encoding="utf-8"))
    return [*asked, *alerts]


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:forewarn|process)_\w+", expression))


def test_every_metric_that_alerts_and_the_dashboard_name_is_shown(shown: dict[str, set[str]]) -> None:
    named = {name for expression in expressions() for name in names_in(expression)}
    assert len(named) > 30
    assert named <= shown.keys()


def test_every_label_that_they_name_is_there(shown: dict[str, set[str]]) -> None:
    targets = {"instance", "job", "le"}  # which Prometheus adds
    for expression in expressions():
        names = names_in(expression)
        has = {label for name in names for label in shown[name]} | targets
        grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(",")}
        chosen = set(re.findall(r"[{,](\w+)=", expression))
        assert grouped | chosen <= has, expression


def test_every_value_of_a_label_that_they_choose_is_there(scraped: str) -> None:
    for expression in expressions():
        for label, value in re.findall(r'(\w+)="(\w+)"', expression):
            assert f'{label}="{value}"' in scraped, expression


def test_every_metric_of_ours_is_on_the_dashboard(shown: dict[str, set[str]]) -> None:
    asked = {name for panel in dashboard()["panels"] for t in panel.get("targets", []) for name in names_in(t["expr"])}
    ours = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in shown}
    told = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in asked}
    left_out = {"forewarn_lab_time_seconds"}
    assert {name for name in ours if name.startswith("forewarn_")} - told == left_out


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_every_alert_is_documented_and_has_a_test_of_its_own() -> None:
    alerts = re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8"))
    documented = re.findall(r"^\| (Forewarn\w+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert documented == alerts
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts", CASES.read_text(encoding="utf-8"))
    assert set(fired) == set(alerts)


def test_the_scrape_config_of_the_documentation_is_the_one_that_is_deployed() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for line in ("client_secret_file: /etc/prometheus/forewarn.secret", "https://localhost:8443/adfs/oauth2/token"):
        assert line in page
        assert line in CONFIG.read_text(encoding="utf-8")


def a_program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: prometheus)")
    return found


def promtool(*arguments: str, given: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    line = [a_program("promtool"), *arguments]
    return subprocess.run(line, input=given, capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


@pytest.mark.real
def test_promtool_finds_nothing_to_complain_about(scraped: str) -> None:
    # Of two processes one after the other, so what both tell of themselves is left out once.
    families: dict[str, str] = {}
    for part in re.split(r"(?m)^(?=# HELP )", scraped):
        families.setdefault(part.partition("\n")[0], part)
    checked = promtool("check", "metrics", given="".join(families.values()))
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stderr


@pytest.mark.real
def test_promtool_plays_the_alerts() -> None:
    checked = promtool("check", "rules", RULES.name, cwd=RULES.parent)
    assert checked.returncode == 0, checked.stderr
    played = promtool("test", "rules", CASES.name, cwd=RULES.parent)
    assert played.returncode == 0, played.stdout + played.stderr


@pytest.mark.real
def test_an_alert_that_is_wrong_fails_its_test(tmp_path: Path) -> None:
    text = RULES.read_text(encoding="utf-8")
    alerts = re.findall(r"(?m)^      - alert: (\w+)\n        expr: ", text)
    assert len(alerts) >= 10
    shutil.copy(CASES, tmp_path)
    for alert in alerts:
        wrong = re.sub(
            rf"(- alert: {alert}\n        expr: )(?:>-\n(?: {{10}}.*\n)+|.*\n)", r"\1vector(1) > 2" + "\n", text
        )
        assert wrong != text
        (tmp_path / RULES.name).write_text(wrong, encoding="utf-8")
        assert promtool("test", "rules", CASES.name, cwd=tmp_path).returncode != 0, alert


def config_for(service: ServiceProcess, console: int, secret: Path) -> str:
    text = CONFIG.read_text(encoding="utf-8").replace("localhost:8443", f"localhost:{console}")
    text = text.replace("/etc/prometheus/forewarn.secret", str(secret))
    text = text.replace("/etc/prometheus/forewarn-ca.pem", str(service.data / "tls" / "ca.pem"))
    return text.replace("/etc/prometheus/forewarn.rules.yml", str(RULES)).replace(
        "scrape_interval: 15s", "scrape_interval: 1s"
    )


@pytest.mark.real
def test_a_real_prometheus_signs_in_and_reads_the_console(tmp_path: Path) -> None:
    """By the very scrape config that is deployed: a client of its own, a secret, the token endpoint, the local CA."""
    prometheus, console, port = a_program("prometheus"), free_port(), free_port()
    environment = {"FOREWARN_CONSOLE": f"127.0.0.1:{console}"}
    with ServiceProcess(data=tmp_path / "data", fleet=FLEET, environment=environment) as service:
        secret, config = tmp_path / "secret", tmp_path / "prometheus.yml"
        assert service.forewarn("access", "client", "add", "prometheus", "--secret-file", str(secret)).returncode == 0
        assert service.forewarn("access", "grant", "Reader", "--to", "prometheus", "--everything").returncode == 0
        config.write_text(config_for(service, console, secret), encoding="utf-8")
        checked = promtool("check", "config", str(config))
        assert checked.returncode == 0, checked.stderr

        line = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        with (tmp_path / "log").open("wb") as log:
            child = subprocess.Popen([*line, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            service.poll("web-0")
            assert until_read(port, 'forewarn_polls_total{version="2020-07-01",outcome="200"}') == "1"
        finally:
            child.kill()
            child.wait(timeout=30)


def until_read(port: int, query: str) -> str:
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})

    def looked() -> str:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return ""
        value = str(found[0]["value"][1]) if found else "0"
        return "" if value == "0" else value

    return eventually(looked)
