"""The status page in a real browser: by day and by night, on a phone, during a rebalance, and acting.

With PICTURES set to a directory the pictures of the documentation are written there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from kunicorn.observe.status import ReloadStatus
from tests.chromium import Tab, chromium
from tests.kafka import KafkaCluster
from tests.system.members import MemberProcess, Members
from tests.system.producing import Flow
from tests.unit.observe.serving import TOKEN, Service, serving
from tests.unit.observe.snapshots import partition, status, worker

pytestmark = pytest.mark.long
PARTITIONS = 64
PAIR = "(figure) => [...figure.children].map((part) => part.textContent)"
_RELOADED = ReloadStatus("completed", revision=2, message="all workers run revision 2", kept=(), age=1.0)
LIVE = "document.getElementById('live')?.textContent === 'live'"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures go."""
    directory = Path(os.environ.get("PICTURES", tmp_path))
    directory.mkdir(exist_ok=True)
    return directory


async def opened(tab: Tab, member: MemberProcess) -> None:
    await tab.open(f"http://127.0.0.1:{member.port}/")
    await tab.until(LIVE)


async def test_three_workers_and_64_partitions_are_shown_live_by_day_by_night_and_on_a_phone(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path, pictures: Path
) -> None:
    kafka.create_topic("orders", PARTITIONS)
    members = members_of(kafka.bootstrap, "orders", workers=3, env={"KUNICORN_HANDLER_MS": "5"})
    first = members.start({"kafka": {"client_id": "shop"}}, env={"KUNICORN_HTTP__TOKEN": TOKEN})
    first.wait_running(PARTITIONS)
    with Flow(kafka.bootstrap, "orders", 300):
        async with chromium(tmp_path) as tab:
            await opened(tab, first)
            assert await tab.value("document.querySelectorAll('#workers tbody tr').length") == 3
            assert await tab.value("document.querySelectorAll('#map i.running').length") == PARTITIONS
            assert await tab.value("document.getElementById('state').textContent") == "stable"
            await tab.until("Number([...document.querySelectorAll('#figures dd')][2].textContent) > 100")
            backs = set()
            for dark in (False, True):
                await tab.look(dark=dark)
                backs.add(await tab.value("getComputedStyle(document.body).backgroundColor"))
                await tab.picture(pictures / f"status-{'dark' if dark else 'light'}.png")
            assert len(backs) == 2
            await tab.look(width=390, height=844)
            # A page that is too wide makes a phone zoom out: its window becomes wider than the screen.
            assert await tab.value("Math.max(document.documentElement.scrollWidth, window.innerWidth)") == 390
            await tab.picture(pictures / "status-phone.png")
            await tab.look()
            second = members.start()
            # A rebalance can be over between two events: held up by its other member, it lasts.
            first.wait(lambda: first.status()["group"]["state"] != "stable", "the rebalance to begin")
            os.kill(second.pid, signal.SIGSTOP)
            await tab.until("document.getElementById('state').textContent !== 'stable'")
            await tab.picture(pictures / "status-rebalance.png")
            os.kill(second.pid, signal.SIGCONT)
            await tab.until(f"document.querySelectorAll('#map i').length === {PARTITIONS // 2}", 60)
            assert second.stop() == 0
            await tab.until(f"document.querySelectorAll('#map i.running').length === {PARTITIONS}", 60)
            own = f"http://127.0.0.1:{first.port}/"
            assert all(url.startswith((own, "about:")) for url in tab.requests), "nothing comes from elsewhere"
            assert tab.complaints == []
    assert first.stop() == 0


async def test_a_person_acts_on_the_page_with_the_token_and_not_without(tmp_path: Path) -> None:
    service = Service()
    async with serving(service, token=SecretStr(TOKEN)) as server, chromium(tmp_path) as tab:
        service.snapshot = status(acts=True)
        await tab.open(f"http://127.0.0.1:{server.port}/")
        await tab.until(LIVE)
        said = "document.getElementById('said').textContent"
        await tab.press("[data-action=pause]")
        await tab.until(f"{said}.startsWith('Type the token first')")
        await tab.value("document.getElementById('token').value = 'wrong-horse-battery'")
        await tab.press("form [data-action=pause]")
        await tab.until(f"{said}.includes('send the token of [http]')")
        await tab.value(f"document.getElementById('token').value = {TOKEN!r}")
        await tab.press("form [data-action=pause]")
        await tab.until(f"{said} === 'pause: pause is done'")
        await tab.press("#workers [data-action=recycle]")
        await tab.until(f"{said} === 'recycle: recycle is done'")
        await tab.press("form [data-action=reload]")
        await tab.until(f"{said} === 'reload: reload is done'")
        service.snapshot = status(acts=True, reload=_RELOADED)
        await tab.until("document.getElementById('member').textContent.includes('all workers run revision 2')")
    assert service.done == [("pause", []), ("recycle", 0), ("reload", None)]


async def test_what_a_handler_raises_is_text_and_never_markup(tmp_path: Path) -> None:
    service = Service()
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    halted = partition(0, state="halted", reason=evil)
    service.snapshot = status(partitions=(halted,), problem=evil, settings={"handler": {evil: evil}})
    async with serving(service) as server, chromium(tmp_path) as tab:
        await tab.open(f"http://127.0.0.1:{server.port}/")
        await tab.until(LIVE)
        assert await tab.value("document.title") == "shop – kunicorn"
        assert await tab.value("document.querySelectorAll('main img, main script').length") == 0
        assert await tab.value("document.querySelector('#partitions td.why').textContent") == evil
        assert await tab.value("document.getElementById('actions').hidden"), "no token, no buttons"


async def test_what_waits_and_what_is_sent_is_seen_at_a_glance(tmp_path: Path) -> None:
    service = Service()
    waits = partition(7, reason="waits for its outputs to be delivered", lag=0)
    busy = tuple(partition(number, lag=1000) for number in range(30, 60))
    service.snapshot = status(
        partitions=(*busy, waits),
        workers=(worker(waiting={"delivery": 1, "delay": 3}),),
        totals={"records": 9, "sent": 1234, "aborted": 5, "retry_topics": 12},
        settings={"producing": {"delivery": "transactions"}},
    )
    async with serving(service) as server, chromium(tmp_path) as tab:
        await tab.open(f"http://127.0.0.1:{server.port}/")
        await tab.until(LIVE)
        shown = await tab.value(f"Object.fromEntries([...document.querySelectorAll('#figures div')].map({PAIR}))")
        assert (shown["Waiting"], shown["Records sent"], shown["Aborted transactions"]) == ("1", "1,234", "5")
        assert shown["Into retry topics"] == "12"
        first = await tab.value("document.querySelector('#partitions tbody tr').textContent")
        assert first.startswith("orders-7"), "before the twenty with the most lag"
        service.snapshot = status()
        await tab.until("!document.getElementById('figures').textContent.includes('Records sent')")
        red = "[...document.querySelectorAll('#figures .bad dt')].map((e) => e.textContent).includes('Waiting')"
        service.snapshot = status(workers=(worker(waiting={"wait": 1, "dead_letter": 1}),))
        await tab.until(red)
        service.snapshot = status(workers=(worker(waiting={"wait": 1, "rate_limit": 2, "delay": 3}),))
        await tab.until(f"!({red})")
        shown = await tab.value(f"Object.fromEntries([...document.querySelectorAll('#figures div')].map({PAIR}))")
        assert shown["Waiting"] == "3", "as they should be"


async def test_a_lag_that_is_not_known_is_told_beside_the_sum_of_those_that_are(tmp_path: Path) -> None:
    service = Service()
    service.snapshot = status(partitions=(partition(0, lag=1000), partition(1, lag=None), partition(2, lag=None)))
    async with serving(service) as server, chromium(tmp_path) as tab:
        await tab.open(f"http://127.0.0.1:{server.port}/")
        await tab.until(LIVE)
        figures = f"Object.fromEntries([...document.querySelectorAll('#figures div')].map({PAIR}))"
        shown = await tab.value(figures)
        assert (shown["Lag, records"], shown["Lag not known, partitions"]) == ("1,000", "2")
        service.snapshot = status(partitions=(partition(0, lag=None),))
        await tab.until(f"({figures})['Lag, records'] === '–'")
        service.snapshot = status(partitions=())
        await tab.until(f"({figures})['Lag, records'] === '0'")
        assert "Lag not known, partitions" not in await tab.value(figures)


async def test_a_service_that_is_gone_is_told(tmp_path: Path) -> None:
    async with chromium(tmp_path) as tab:
        async with serving(Service()) as server:
            await tab.open(f"http://127.0.0.1:{server.port}/")
            await tab.until(LIVE)
        await tab.until("document.getElementById('live').textContent.includes('what is shown is old')", 20)
