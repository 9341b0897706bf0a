"""The deployed alerts and dashboard use only metrics that exist, and promtool tests the alerts."""

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

from forewarn.cluster.metrics import ControlNodeFigures, ControlNodeMetrics
from forewarn.metadata.metrics import WorkerMetrics
from forewarn.metadata.request_counters import RequestTotals
from tests.metrics.test_service_metrics import MeteredWorld, run_some_events
from tests.support.service_process import ServiceProcess, eventually, free_port

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "forewarn.rules.yml"
CASES = RULES.with_name("forewarn.rules.test.yml")
CONFIG = RULES.with_name("prometheus.yml")
DASHBOARD = ROOT / "deploy" / "grafana" / "forewarn.json"
DOCS = ROOT / "docs" / "how-to" / "monitoring.md"
FLEET = '[[hosts]]\nname = "host-0"\n[[vms]]\nname = "web-0"\n'


@pytest.fixture(scope="module")
def scraped() -> str:
    """The metrics text of an owner and a worker."""
    metered = MeteredWorld()
    try:
        metered.worker_lags = [(0.0, 0.0)]
        run_some_events(metered)
        worker = WorkerMetrics(request_totals=RequestTotals, silent_s=lambda: 0.0)
        control_node = ControlNodeMetrics(ControlNodeFigures).render()
        return metered.text() + metered.world.do(worker.render()).decode() + control_node.decode()
    finally:
        metered.metrics.close()
        metered.world.close()


@pytest.fixture(scope="module")
def series(scraped: str) -> dict[str, set[str]]:
    """The names of all series, each with its labels."""
    found: dict[str, set[str]] = {}
    for family in read(scraped):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def expressions() -> list[str]:
    queried = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    alerts = re.findall(r"expr: (?:>-\n)?((?:.|\n {10})+)", RULES.read_text(encoding="utf-8"))
    return [*queried, *alerts]


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:forewarn|process)_\w+", expression))


def test_every_metric_that_alerts_and_dashboard_use_is_exported(series: dict[str, set[str]]) -> None:
    named = {name for expression in expressions() for name in names_in(expression)}
    assert len(named) > 30
    assert named <= series.keys()


def test_every_label_that_alerts_and_dashboard_use_is_exported(series: dict[str, set[str]]) -> None:
    targets = {"instance", "job", "le"}  # added by Prometheus
    for expression in expressions():
        names = names_in(expression)
        has = {label for name in names for label in series[name]} | targets
        grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(",")}
        chosen = set(re.findall(r"[{,](\w+)=", expression))
        assert grouped | chosen <= has, expression


def test_every_label_value_that_alerts_and_dashboard_use_is_exported(scraped: str) -> None:
    for expression in expressions():
        for label, value in re.findall(r'(\w+)="(\w+)"', expression):
            assert f'{label}="{value}"' in scraped, expression


def test_every_exported_metric_is_on_the_dashboard(series: dict[str, set[str]]) -> None:
    queried = {
        name for panel in dashboard()["panels"] for t in panel.get("targets", []) for name in names_in(t["expr"])
    }
    ours = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in series}
    on_dashboard = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in queried}
    left_out = {"forewarn_lab_time_seconds"}
    assert {name for name in ours if name.startswith("forewarn_")} - on_dashboard == left_out


def test_dashboard_panels_do_not_overlap_and_have_unique_ids() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        taken |= cells


def test_every_alert_is_documented_and_has_its_own_test() -> None:
    alerts = re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8"))
    documented = re.findall(r"^\| (Forewarn\w+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert documented == alerts
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts", CASES.read_text(encoding="utf-8"))
    assert set(fired) == set(alerts)


def test_the_documented_scrape_config_is_the_deployed_one() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for command in ("client_secret_file: /etc/prometheus/forewarn.secret", "https://localhost:8443/adfs/oauth2/token"):
        assert command in page
        assert command in CONFIG.read_text(encoding="utf-8")


def find_program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: prometheus)")
    return found


def promtool(*arguments: str, stdin: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [find_program("promtool"), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


@pytest.mark.real
def test_promtool_accepts_the_metrics(scraped: str) -> None:
    # The text of two processes: families that both export must appear once.
    families: dict[str, str] = {}
    for part in re.split(r"(?m)^(?=# HELP )", scraped):
        families.setdefault(part.partition("\n")[0], part)
    checked = promtool("check", "metrics", stdin="".join(families.values()))
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stderr


@pytest.mark.real
def test_promtool_passes_the_tests_of_the_alerts() -> None:
    checked = promtool("check", "rules", RULES.name, cwd=RULES.parent)
    assert checked.returncode == 0, checked.stderr
    tested = promtool("test", "rules", CASES.name, cwd=RULES.parent)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.real
def test_a_wrong_alert_fails_its_test(tmp_path: Path) -> None:
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
    """With the deployed scrape config: its own client, a secret, the token endpoint, the local CA."""
    prometheus, console, port = find_program("prometheus"), free_port(), free_port()
    environment = {"FOREWARN_API": f"127.0.0.1:{console}"}
    with ServiceProcess(data=tmp_path / "data", fleet=FLEET, environment=environment) as service:
        secret, config = tmp_path / "secret", tmp_path / "prometheus.yml"
        assert service.forewarn("access", "client", "add", "prometheus", "--secret-file", str(secret)).returncode == 0
        assert service.forewarn("access", "grant", "Reader", "--to", "prometheus", "--everything").returncode == 0
        config.write_text(config_for(service, console, secret), encoding="utf-8")
        checked = promtool("check", "config", str(config))
        assert checked.returncode == 0, checked.stderr

        command = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        with (tmp_path / "log").open("wb") as log:
            child = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            service.poll("web-0")
            assert wait_for_value(port, 'forewarn_polls_total{version="2020-07-01",code="200"}') == "1"
        finally:
            child.kill()
            child.wait(timeout=30)


def wait_for_value(port: int, query: str) -> str:
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})

    def query_value() -> str:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return ""
        value = str(found[0]["value"][1]) if found else "0"
        return "" if value == "0" else value

    return eventually(query_value)
