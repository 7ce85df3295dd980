"""Whoever opens a page for the first time finds on its first screen what they came for.

The list has a reader's question for each page, and words of the answer: they stand within the page's first 40 lines.
The page itself is found from the README by two links at most. To try a page on a reader, show them these lines and no
more, and ask them the question. A page that fails is mended, or its question is asked of another page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.markdown import ROOT

LINES = 40
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RUNBOOKS = sorted(page for page in PAGES if re.search(r"runbooks/Kunicorn", page))

QUESTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("README.md", "What is it, and is it for me?", ("consumer group", "It is not for", "Flink")),
    ("README.md", "What do I write?", ("def handle_order(record)", "If it raises")),
    ("README.md", "How do I install it?", ("pip install ./kunicorn",)),
    ("docs/architecture.md", "Which processes are there, and what does each do?", ("supervisor", "template", "worker")),
    ("docs/benchmarks.md", "How fast is it beside others?", ("#beside-every-peer", "confluent-kafka", "two cores")),
    (
        "docs/clusters.md",
        "I have YARN: how does my handler get there?",
        ("| YARN | [an archive](#yarn)", "same relative one"),
    ),
    ("docs/clusters.md", "Does Airflow's retry repeat everything?", ("goes on where it was", "--begin-or-resume ID")),
    ("docs/columns.md", "Which columns are there, and of which types?", ("`timestamp[ms, UTC]`", "is refused")),
    ("docs/commands.md", "What do I type to see why a record fails?", ("kunicorn replay-one orders 7 1234 --pdb",)),
    ("docs/commands.md", "Which command changes something?", ("| changes |", "`dlq replay`", "asks first")),
    ("docs/compared.md", "Should I take another one?", ("Quix Streams", "FastStream", "Kafka Connect", "| take |")),
    ("docs/compatibility.md", "Does it run on my Python and Kafka?", ("Python 3.11 to 3.13", "Kafka 2.8 to 4.4")),
    ("docs/compatibility.md", "May two versions be in one group, and can I go back?", ("one group", "#to-go-back")),
    ("docs/concurrency.md", "My handler waits: what do I set?", ("concurrency = 50", 'mode = "batch"', "async def")),
    ("docs/conformance.md", "How much of other clients' tests does it stand?", ("librdkafka", "| **all** |")),
    ("docs/decoding.md", "How do I get JSON as a class of mine?", ("def handle_order(order: Order)", "dataclass")),
    ("docs/decoding.md", "What has a record?", ("`value`, `key`", "`headers`", "`idempotency_key`")),
    ("docs/delivery.md", "What may be handled twice, and when?", ("at least once", "since its last commit", "in hand")),
    ("docs/exactly-once.md", "Which way of delivery do I need?", ('"transactions"', "load_offsets", "idempotency_key")),
    (
        "docs/failures.md",
        "What do I set so that a bad record stops nothing?",
        ('on_failure = "dead_letter"', "ValueError"),
    ),
    ("docs/failures.md", "And if a database is away for an hour?", ("retry_topic_delays_ms",)),
    ("docs/faq.md", "Nothing is handled: why?", ("auto_offset_reset", "halted", "kunicorn status")),
    ("docs/filters.md", "How do I get some of the records only?", ("[[handler.filters]]", "one_of = [", "max_age_ms")),
    ("docs/glossary.md", "What does “drain” mean?", ("records [in hand]", "Elsewhere: graceful shutdown")),
    ("docs/groups.md", "How do I run it on more machines?", ("start the service there, too", "[workers] count")),
    (
        "docs/handlers.md",
        "Where do I open a connection?",
        ("| a connection, options, something at the end | a [class]",),
    ),
    ("docs/handlers.md", "What may I import?", ("from kunicorn import DeadLetter, Record, Send",)),
    ("docs/incidents.md", "Has the defect that bit me elsewhere been looked for here?", ("what happened", "here |")),
    ("docs/install.md", "How do I install it?", ("pip install ./kunicorn-", "never by its bare name")),
    (
        "docs/limits.md",
        "The API that my handler calls is down: how do I stop calling it?",
        ("[handler.circuit_breaker]", "open_ms", "nothing is lost"),
    ),
    ("docs/limits.md", "How do I call it at most 50 times a second?", ("[handler.rate_limit]", "per_second = 50")),
    ("docs/metrics.md", "Which metric says how far behind the group is?", ("kafka_consumer_max_lag_seconds",)),
    ("docs/operations.md", "How do I deploy it?", ("helm install orders", "# values.yaml", "entrypoint:")),
    ("docs/operations.md", "How much memory does a pod need?", ("#sizing",)),
    (
        "docs/pipeline.md",
        "How do I handle last month again?",
        ("kunicorn pipeline backfill --from", "--dry-run", "Java 17"),
    ),
    ("docs/promises.md", "What is promised if a worker is killed?", ("no rebalance", "in hand")),
    ("docs/reference.md", "What is in kunicorn.testing?", ("HandlerTest", "help(kunicorn.Record)")),
    ("docs/security.md", "Which rights does the user need?", ("`READ` on the topics and on the group",)),
    ("docs/security.md", "How do I log in with SCRAM over TLS?", ("sasl_password_file", "ssl_ca_location")),
    ("docs/settings.md", "Where is a setting written, and which sections are there?", ("config.toml", "[`[workers]`]")),
    ("docs/settings.md", "How do I set one by the environment?", ("KUNICORN_GROUP__TOPICS=orders,refunds",)),
    ("docs/soak.md", "How much was it tried on, and what was lost?", ("make soak", "| lost |", "50,000,000")),
    ("docs/states.md", "What does “halted” mean, and what do I do?", ("cannot be handled", "kunicorn resume")),
    ("docs/testing.md", "How do I test my handler?", ("HandlerTest(", "run.outcomes ==")),
    ("docs/otlp.md", "How do I send metrics to a collector?", ("enabled = true", "endpoint", "4318")),
    ("docs/tracing.md", "How do I get spans?", ("enabled = true", "cookbook/opentelemetry.md")),
    ("docs/unusual.md", "What happens with a record of 50 MB?", ("handled, whatever `memory_per_worker_mb` is",)),
    ("docs/migration/aiokafka.md", "What becomes of my loop?", ("async def handle_order(record)", "getmany")),
    ("docs/migration/confluent-kafka.md", "What becomes of my loop?", ("becomes a function and a file", "[handler]")),
    (
        "docs/migration/faust.md",
        "What becomes of an agent, and of a Table?",
        ("async def ship(order: Order)", "a database"),
    ),
    ("docs/tutorial/README.md", "What will I know, and what does it need?", ("afterwards you can", "this machine")),
    ("docs/tutorial/1-first-handler.md", "Which files do I write?", ("def handle_order", "# config.toml", "# test_")),
    ("docs/tutorial/2-failures.md", "How does a failed record look?", ("*halted*", "kunicorn status")),
    ("docs/tutorial/3-database.md", "How is a row written once?", ("load_offsets", "BEGIN IMMEDIATE")),
    ("docs/tutorial/4-batches.md", "How do I get many records at once?", ('mode = "batch"', "executemany")),
    ("docs/tutorial/5-deploying.md", "What do I need for a cluster?", ("# Dockerfile", "# values.yaml")),
    ("docs/tutorial/6-backfill.md", "What does a backfill need?", ("Java 17", "kunicorn pipeline backfill")),
    ("docs/cookbook/README.md", "Is there a recipe for PostgreSQL?", ("[PostgreSQL](postgresql.md)",)),
    ("docs/cookbook/beside.md", "How do I try a new handler?", ("KUNICORN_GROUP__ID=shop-next",)),
    (
        "docs/cookbook/clickhouse.md",
        "How are inserts made large?",
        ("ReplacingMergeTree", "batch_max_records = 10_000"),
    ),
    ("docs/cookbook/dataframes.md", "How does a batch become a frame?", ("pl.from_arrow(batch.to_arrow())",)),
    ("docs/cookbook/deduplication.md", "How do I drop a repeated event?", ("INSERT OR IGNORE INTO seen",)),
    ("docs/cookbook/django.md", "Where do I call django.setup()?", ("django.setup()", "close_old_connections()")),
    ("docs/cookbook/embeddings.md", "Where is the model loaded?", ("in `setup`", "list[Article]")),
    ("docs/cookbook/fan-out.md", "How do I send several records?", ("yield Send(", "[producing]")),
    ("docs/cookbook/http-api.md", "What if the API limits me?", ("429", "Wait(", "Retry-After")),
    ("docs/cookbook/moving-a-group.md", "How do I rename a group?", ("--from-file before.csv --execute",)),
    ("docs/cookbook/opentelemetry.md", "Where is the provider made?", ("In each worker", "TracerProvider(")),
    ("docs/cookbook/poison.md", "What about a record that kills its process?", ("max_crashes",)),
    ("docs/cookbook/postgresql.md", "How do I insert in bulk, once?", ("by one `COPY`", "def handle(self, batch)")),
    ("docs/cookbook/schemas.md", "How do I send a model by its schema?", ("yield Send(", 'value = "avro"')),
    ("docs/cookbook/sentry.md", "How do exceptions get to Sentry?", ("sentry_sdk.init(",)),
    ("docs/cookbook/filters.md", "How do I leave out records by header?", ('on = "header:region"', 'one_of = ["eu"]')),
    ("docs/cookbook/logging.md", "How do I add a field to every line?", ("line.__dict__.update(FIELDS.get())",)),
    ("docs/cookbook/topics.md", "How does a deployment create topics?", ("kunicorn topics apply --yes",)),
    ("docs/cookbook/tenants.md", "How is a tenant's order kept?", ('ordering = "key"', "concurrency = 50")),
    ("docs/cookbook/testing.md", "How do I test repetition?", ("idempotency_key",)),
    ("docs/runbooks/README.md", "Which page belongs to my alert?", ("[KunicornLagHigh]", "kubectl")),
    ("docs/runbooks/brokers-are-down.md", "What do I do first?", ("kubectl",)),
    ("docs/runbooks/switch-to-static.md", "How do I switch?", ("membership.static",)),
)


def first_screen(page: str) -> str:
    """The page's first lines, with single spaces, so that a line's end hides no answer."""
    return " ".join(" ".join((ROOT / page).read_text().splitlines()[:LINES]).split())


def linked(page: str) -> Iterator[str]:
    """Pages that a page links, as paths from the root."""
    for target in re.findall(r"\]\(([^)#\s]+\.md)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            yield ((ROOT / page).parent / target).resolve().relative_to(ROOT.resolve()).as_posix()


@pytest.mark.parametrize(
    ("page", "question", "answer"), QUESTIONS, ids=[f"{page}: {asked}" for page, asked, _ in QUESTIONS]
)
def test_the_first_screen_answers(page: str, question: str, answer: tuple[str, ...]) -> None:
    shown = first_screen(page)
    assert [words for words in answer if words not in shown] == [], f"{question} is not answered on the first screen"


@pytest.mark.parametrize("page", RUNBOOKS)
def test_the_first_screen_of_a_runbook_says_what_it_costs_and_what_to_type(page: str) -> None:
    shown = first_screen(page)
    assert [
        words for words in ("## What it costs", "## The query", "## Look", "kubectl -n shop") if words not in shown
    ] == []


@pytest.mark.parametrize("page", ["failures.md", "concurrency.md", "exactly-once.md", "delivery.md"])
def test_a_page_on_which_one_decides_draws_the_decision(page: str) -> None:
    drawn = re.findall(r"^```text\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    assert any("├" in tree or "┬" in tree for tree in drawn)


def test_every_page_is_asked_something() -> None:
    assert set(PAGES) - set(RUNBOOKS) == {page for page, _, _ in QUESTIONS}


def test_every_page_is_found_from_the_readme_by_two_links() -> None:
    once = {"README.md", *linked("README.md")}
    twice = once.union(*(linked(page) for page in once if (ROOT / page).suffix == ".md" and (ROOT / page).exists()))
    assert set(PAGES) - twice == set()
