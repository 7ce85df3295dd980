"""`kunicorn check`: would the service work with these settings? Asks everything that can be asked without joining the
group: a check never costs the group a rebalance, so that it is safe beside running members.
"""

from kunicorn.commands.check.cluster import Finding
from kunicorn.commands.check.session import check

__all__ = ["Finding", "check"]
