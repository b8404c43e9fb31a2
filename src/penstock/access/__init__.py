"""Who may do what, and how often: tokens, their permissions, and rate limits for each client."""

from penstock.access.core.principal import ANYONE, Action, Principal, Right, Verb
from penstock.access.core.token import Token
from penstock.access.keyring import Keyring
from penstock.rate_limit import ClientRates

__all__ = ["ANYONE", "Action", "ClientRates", "Keyring", "Principal", "Right", "Token", "Verb"]
