"""`kunicorn topics`: the topics that the settings need, compared with those there are (`check`, `plan`), created and
changed on demand (`apply`). Blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from kunicorn.clients.session import ClusterSession, cluster_session
from kunicorn.commands.topics.cluster import Admin, carry_out, look
from kunicorn.commands.topics.plan import Plan, needs, plan
from kunicorn.errors import ConfigError
from kunicorn.settings import Settings
from kunicorn.text import tell

Say = Callable[[str], None]


def _plan(session: ClusterSession, admin: Admin) -> Plan:
    found = look(session, admin)
    return plan(found, needs(session.settings, found))


def show(settings: Settings) -> Plan:
    """The plan; changes nothing. Raises `ConfigError`, as all of these do, where brokers or settings refuse."""
    with cluster_session(settings) as session:
        return _plan(session, Admin(settings, session.token))


def check(settings: Settings, say: Say, *, as_json: bool) -> None:
    """Show the plan. Raises `ConfigError` unless every topic is as the settings need it."""
    found = show(settings)
    tell(found, say, as_json=as_json)
    if found.changes or found.by_hand:
        what = f"{len(found.changes)} topics to create or change, {len(found.by_hand)} findings to meet by hand"
        raise ConfigError(f"{what}: see kunicorn topics plan, kunicorn topics apply")


def apply(settings: Settings, say: Say, confirm: Callable[[], bool], *, as_json: bool) -> None:
    """Show the plan, ask, and carry it out. Raises `ConfigError` where nobody confirms, where it is not the plan any
    more that was shown, or where a broker refuses a change; the others are done nevertheless."""
    with cluster_session(settings) as session:
        admin = Admin(settings, session.token)
        found = _plan(session, admin)
        if not as_json:
            tell(found, say, as_json=False)
        if found.changes and not confirm():
            raise ConfigError("nothing was changed")
        # Somebody else may have raised a value meanwhile, which that of the plan would lower.
        if found.changes and _plan(session, admin) != found:
            raise ConfigError("nothing was changed: the topics are not what they were for the plan; look at it again")
        failed = carry_out(admin, found.changes, (lambda _: None) if as_json else say)
    if as_json:
        tell(found, say, as_json=True)
    if failed:
        raise ConfigError(f"{len(failed)} of {len(found.changes)} changes were refused: {'; '.join(failed)}")
