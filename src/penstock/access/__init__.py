"""Who may do what, and how often: tokens, what they allow, and limits for each client."""

from penstock.access.core.principal import ANYONE, Principal, Verb
from penstock.access.core.rate_limit import ClientRates
from penstock.access.core.token import Token
from penstock.access.keyring import Keyring

__all__ = ["ANYONE", "ClientRates", "Keyring", "Principal", "Token", "Verb"]
