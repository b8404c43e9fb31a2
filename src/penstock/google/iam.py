"""`google.iam.v1.IAMPolicy`: policies of resources are stored and shown, and allow everything.

Only Penstock's tokens decide about permissions. Tools that read and write policies work, but the policies are not enforced.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from penstock.access import Principal, Verb
from penstock.api.schemas import Schemas
from penstock.broker import lookup
from penstock.broker.catalog import Catalog
from penstock.errors import Aborted
from penstock.google import messages
from penstock.google.core.fields import check_policy_size
from penstock.google.resources import KINDS, Message, Resources
from penstock.values import resource_names as names
from penstock.values.stored_forms import IAM_PREFIX


class IamPolicies:
    """The calls of the service, by their names in lower case."""

    def __init__(self, resources: Resources, schemas: Schemas) -> None:
        self._resources = resources
        self._schemas = schemas

    async def set_iam_policy(self, request: Any, caller: Principal) -> Message:
        """Store a policy for a resource."""
        name = self._admit(caller, Verb.MANAGE, request.resource)
        policy = messages.Policy()
        policy.CopyFrom(request.policy)
        check_policy_size(policy)

        def keep(catalog: Catalog, now: int) -> Any:
            current = self._policy(name)
            if policy.etag and policy.etag != current.etag:
                raise Aborted(f"the policy of {name} has changed since it was read", hint="read it again and repeat the change")
            policy.ClearField("etag")
            policy.etag = sha256(policy.SerializeToString(deterministic=True)).digest()[:8]
            return catalog.keep_document(f"{IAM_PREFIX}{name}", policy.SerializeToString(), now)

        await self._resources.change(keep)
        return policy

    async def get_iam_policy(self, request: Any, caller: Principal) -> Message:
        """The policy of a resource; an empty one if none was stored."""
        return self._policy(self._admit(caller, Verb.READ, request.resource))

    async def test_iam_permissions(self, request: Any, caller: Principal) -> Message:
        """Every requested permission."""
        self._admit(caller, Verb.READ, request.resource)
        return messages.TestIamPermissionsResponse(permissions=request.permissions)

    def _policy(self, name: names.Name) -> Message:
        return messages.Policy.FromString(lookup.document(self._resources.broker, f"{IAM_PREFIX}{name}") or b"")

    def _admit(self, caller: Principal, verb: Verb, text: str) -> names.Name:
        name = names.parse_any(text, "resource")
        caller.check(verb, name.project, name.id, kind=KINDS[name.kind])
        broker, key = self._resources.broker, self._resources.key(name)
        match name.kind:
            case names.TOPICS:
                lookup.topic(broker, key)
            case names.SUBSCRIPTIONS:
                lookup.subscription(broker, key)
            case names.SNAPSHOTS:
                lookup.snapshot(broker, key)
            case _:
                self._schemas.revisions(name)
        return name
