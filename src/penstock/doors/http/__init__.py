"""The HTTP shell: one port, one table of routes that is both what is served and what is documented.

A door gives `Route`s; everything around a handler (who calls, how much, how long, what an error looks like) is here.
"""

from penstock.doors.http.door import HttpDoor
from penstock.doors.http.gate import Admission, Gate, TokenGate
from penstock.doors.http.limits import HttpLimits
from penstock.doors.http.operation import Body, Operation, Parameter, Reply
from penstock.doors.http.pages import documented
from penstock.doors.http.refusal import GOOGLE_ERRORS, ErrorBody, Refusal, refusal_of, where
from penstock.doors.http.request import Request, json_response, open_websocket
from penstock.doors.http.routes import Route, RouteTable

__all__ = [
    "GOOGLE_ERRORS",
    "Admission",
    "Body",
    "ErrorBody",
    "Gate",
    "HttpDoor",
    "HttpLimits",
    "Operation",
    "Parameter",
    "Refusal",
    "Reply",
    "Request",
    "Route",
    "RouteTable",
    "TokenGate",
    "documented",
    "json_response",
    "open_websocket",
    "refusal_of",
    "where",
]
