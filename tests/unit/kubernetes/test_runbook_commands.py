"""The commands of the runbooks, as the scenario that types them finds them on the pages."""

from __future__ import annotations

from tests.deploy.runbooks import RUNBOOKS, commands


def test_a_command_of_two_lines_is_one_and_what_is_said_beside_a_command_is_not_typed() -> None:
    look, repair = commands("switch-to-static")
    assert look[0] == "kubectl -n shop exec deploy/orders-kunicorn -c kunicorn -- kunicorn lag"
    (upgrade,) = (line for line in repair if "membership.static=true" in line)
    assert upgrade.endswith("--set config.group.session_timeout_ms=120000")


def test_every_page_has_commands_to_look_with_and_all_begin_with_their_program() -> None:
    for file in RUNBOOKS.glob("[!R]*.md"):
        look, repair = commands(file.stem)
        assert look, file
        assert [line for line in (*look, *repair) if not line.startswith(("kubectl -n shop ", "helm -n shop "))] == []
