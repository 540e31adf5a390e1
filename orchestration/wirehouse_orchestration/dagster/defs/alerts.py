"""Posts alerts to a webhook: failed runs and checks, and new findings of severity violation.

A failed check of our own tables fails its run, which is reported once, as failed checks. Failures and findings from
before the sensor's first tick aren't reported. Alerts that couldn't be posted are posted by the next tick. If the
tables can't be read, that is reported once; failed runs are still reported.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any, Final

import dagster as dg
from dagster import DagsterEventType, DagsterRunStatus, RunsFilter
from deltalake.exceptions import DeltaError

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_orchestration import config
from wirehouse_orchestration.dagster.factories import asked_windows
from wirehouse_pipelines.delta import ledger
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.query import sql

#: The address to post to. It is a secret, because anyone who knows it can post there too.
VARIABLE: Final = "WIREHOUSE_WEBHOOK"
SENSOR_SECONDS: Final = 30
#: Timeouts for the whole response, and for each read of it.
POST_SECONDS: Final = 20
PIECE_SECONDS: Final = 10
#: Maximum number of runs that one tick reports.
MOST_RUNS: Final = 20
#: Findings are counted per window only for this many newest windows, so that the cursor doesn't grow with the lake.
MOST_WINDOWS: Final = 50
#: The prefix that Dagster gives to the message of a `Failure`.
_FAILURE: Final = f"{dg.Failure.__module__}.{dg.Failure.__name__}: "
#: Clocks of machines that commit may differ by this much.
CLOCKS_NS: Final = 3600 * 10**9
_FOUND: Final = """
    SELECT source, rule, window_start, COUNT(*) AS findings FROM gold.violations
    WHERE severity = 'violation' AND window_start >= '{first}' GROUP BY source, rule, window_start
"""


class WebhookError(WirehouseError):
    """Nothing can be posted to the webhook."""

    template = f"nothing could be posted to the address in {VARIABLE}: {{reason}}"
    retry_helps = True


def definitions(lake: Lake) -> dg.Definitions:
    """The sensor."""

    @dg.sensor(
        name="alerts",
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Posts failed runs and checks, and new findings of severity violation, to {VARIABLE}.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        url = os.environ.get(VARIABLE)
        if not url:
            return dg.SkipReason(f"{VARIABLE} is not set: it names the webhook to post to")
        now = datetime.now(UTC).timestamp()
        seen: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
        failed = list(_failed(context.instance, seen["looked"])) if seen else []
        if len(failed) == MOST_RUNS:
            # The next tick continues from the last of them.
            now = failed[-1]["at"]
        # A run that failed during the last tick is found by both ticks.
        lines = [run for run in failed if run["run"] not in seen["runs"]]
        found: Mapping[str, Any] | None = seen.get("found")
        trouble = None
        try:
            found, new = _look(lake, found)
            lines += new
        except (WirehouseError, DeltaError, OSError) as error:
            # One alert per type of error: messages may differ only in a time or a request number.
            trouble = type(error).__name__
            lines += [_unread(lake, error)] if trouble != seen.get("trouble") else []
        if lines:
            _post(url, {"text": "\n".join(line["text"] for line in lines), "lake": lake.root, "alerts": lines})
        seen = {"looked": now, "runs": [run["run"] for run in failed], "found": found, "trouble": trouble}
        context.update_cursor(json.dumps(seen))
        return dg.SkipReason(f"Posted {len(lines)}" if lines else "Nothing new")

    return dg.Definitions(sensors=[alerts])


def _failed(instance: dg.DagsterInstance, since: float) -> Iterable[Mapping[str, Any]]:
    """The first MOST_RUNS runs that failed since `since`."""
    wanted = RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=datetime.fromtimestamp(since, UTC))
    for record in instance.get_run_records(wanted, limit=MOST_RUNS, order_by="update_timestamp", ascending=True):
        run = record.dagster_run
        windows = asked_windows(run.tags)
        reason, checks = _reason(instance, run.run_id), _checks(instance, run.run_id)
        where = f" of {' to '.join(dict.fromkeys(windows))}" if windows else ""
        what = f"checks failed ({', '.join(checks)})" if checks else "failed"
        yield {
            "kind": "failed_checks" if checks else "failed_run",
            "text": f"run {run.run_id[:8]} ({run.job_name}{where}) {what}: {reason}",
            "run": run.run_id,
            "checks": checks,
            "reason": reason,
            "at": record.update_timestamp.timestamp(),
        }


def _checks(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """The failed checks of the run, as table and check name."""
    found = []
    for entry in instance.all_logs(run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION):
        evaluation = entry.dagster_event and entry.dagster_event.asset_check_evaluation_data
        if evaluation and not evaluation.passed:
            found.append(f"{'.'.join(evaluation.asset_key.path)} {evaluation.check_name}")
    return sorted(set(found))


def _reason(instance: dg.DagsterInstance, run_id: str) -> str:
    """The message of the first failed step, on one line."""
    for entry in instance.all_logs(run_id, of_type=DagsterEventType.STEP_FAILURE):
        failure = entry.dagster_event and entry.dagster_event.step_failure_data
        if failure and failure.error:
            error = failure.error.cause or failure.error
            return " ".join(error.message.split()).removeprefix(_FAILURE)[:1000]
    return "see the log of the run"


def _unread(lake: Lake, error: Exception) -> Mapping[str, Any]:
    reason = " ".join(str(error).split())[:1000]
    return {"kind": "unread_tables", "text": f"the tables of {lake.root} can't be read: {reason}", "reason": reason}


def _look(lake: Lake, before: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]:
    """The counts of findings to remember, and alerts for new ones.

    A tick counts findings from the oldest window on that was committed since the last tick. The first tick counts all
    windows. So does a tick if the oldest window is older than those whose counts are remembered one by one.
    """
    entries = ledger.read(lake).values()
    committed = max((entry.committed_at_ns for entry in entries), default=0)
    if before and before["committed"] == committed:
        return before, ()
    first = ""
    if before:
        later = before["committed"] - CLOCKS_NS
        first = min((entry.window_start for entry in entries if entry.committed_at_ns > later), default="")
        first = first if first >= before["since"] else ""
    counts = {} if before is None else {name: n for name, n in before["counts"].items() if _window(name) < first}
    for row in sql.rows(lake, _FOUND.format(first=first)).to_pylist():
        counts[f"{row['source']} {row['rule']} {row['window_start']}"] = row["findings"]
    since = min(sorted({window for window in map(_window, counts) if window})[-MOST_WINDOWS:], default="")
    since = max(since, before["since"]) if before else since
    now = _folded(counts, since)
    seen = {"committed": committed, "since": since, "counts": now}
    return seen, () if before is None else _new(_folded(before["counts"], since), now)


def _window(name: str) -> str:
    """The window of a remembered count; empty for those of older windows together."""
    return name.rpartition(" ")[2]


def _folded(counts: Mapping[str, int], since: str) -> Mapping[str, int]:
    """The number of findings by source, rule and window. Windows before `since` are summed under an empty name."""
    folded: Counter[str] = Counter()
    for name, count in counts.items():
        window = _window(name)
        folded[name if window >= since else name.removesuffix(window)] += count
    return folded


def _new(before: Mapping[str, int], now: Mapping[str, int]) -> Iterable[Mapping[str, Any]]:
    """Alerts for findings that weren't there before."""
    for name, count in sorted(now.items()):
        source, rule, window = name.split(" ")
        if (more := count - before.get(name, 0)) > 0:
            found = "finding" if more == 1 else "findings"
            where, key = (f"window {window} of {source}", f",window_start={window}") if window else (source, "")
            yield {
                "kind": "findings",
                "text": f"{more:,} new {found} of {rule} in {where}: `{config.command()} trace gold.violations "
                f"rule={rule},source={source}{key}`",
                "rule": rule,
                "source": source,
                "window": window or None,
                "new": more,
                "findings": count,
            }


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they usually lead to a login page, where nobody would read the alert."""

    def redirect_request(self, *about: Any) -> None:
        """None."""


_OPENER: Final = urllib.request.build_opener(_NoRedirect)


def _post(url: str, content: Mapping[str, Any]) -> None:
    """Post the alerts. Raises WebhookError, whose message doesn't contain the address."""
    url = url.strip()
    if not url.lower().startswith(("https://", "http://")):
        raise WebhookError(reason="it begins neither with https:// nor with http://")
    answer: Future[None] = Future()

    def post() -> None:
        try:
            request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
            with _OPENER.open(request, timeout=PIECE_SECONDS):
                answer.set_result(None)
        except Exception as error:
            answer.set_exception(error)

    # In a thread, because a server that responds byte by byte would block the sensor.
    threading.Thread(target=post, daemon=True).start()
    try:
        answer.result(POST_SECONDS)
    except TimeoutError:
        raise WebhookError(reason=f"no answer within {POST_SECONDS} s") from None
    except (HTTPException, ValueError):
        # The messages of these errors contain parts of the address.
        raise WebhookError(reason="the address is invalid, or the server there doesn't speak HTTP") from None
    except OSError as error:
        raise WebhookError(reason=str(error)) from None
