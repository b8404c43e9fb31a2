"""The HTTP shell: one port, one table of routes that is both what is served and what is documented.

An API gives `Route`s; everything around a handler (authentication, limits, deadlines, the form of errors) is here.
"""

from penstock.http.authentication import Admission, Gate, TokenGate
from penstock.http.http2_relay import PROTOCOLS, Http2Relay
from penstock.http.limits import HttpLimits
from penstock.http.pages import documented
from penstock.http.port import HttpServer
from penstock.http.refusal import GOOGLE_ERRORS, ErrorBody, Refusal, code_location, refusal_of
from penstock.http.request import Request, accept_websocket, json_response, open_websocket, peer_of
from penstock.http.routes import Body, Operation, Parameter, Reply, Route, RouteTable

__all__ = [
    "GOOGLE_ERRORS",
    "PROTOCOLS",
    "Admission",
    "Body",
    "ErrorBody",
    "Gate",
    "Http2Relay",
    "HttpLimits",
    "HttpServer",
    "Operation",
    "Parameter",
    "Refusal",
    "Reply",
    "Request",
    "Route",
    "RouteTable",
    "TokenGate",
    "accept_websocket",
    "code_location",
    "documented",
    "json_response",
    "open_websocket",
    "peer_of",
    "refusal_of",
]
