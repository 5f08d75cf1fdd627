"""Granting: which scopes a principal may give to a key, and whose keys it may touch.

Nobody gives away what they do not have: otherwise whoever may create keys could create one that
may do everything. A rotation shows a new secret of the key, so it asks for the same.
"""

from collections.abc import Iterable, Sequence

from bottomless.errors import Code, Denied, Fault, InvalidRequest, StoreError
from bottomless.model.names import TENANT_DEFAULT
from bottomless_server.core.principal import Principal
from bottomless_server.core.scopes import EVERYTHING, parse_scope


def check_scopes(scopes: Sequence[str]) -> None:
    """Refuse scopes that a key cannot have.

    Raises:
        InvalidRequest: `validation-failed`, with a pointer to each fault.
    """
    faults = [
        Fault("scope", fault, f"/scopes/{place}")
        for place, scope in enumerate(scopes)
        if (fault := _fault_of(scope)) is not None
    ]
    if len(set(scopes)) < len(scopes):
        faults.append(Fault("scope", "must not have a scope twice", "/scopes"))
    if faults:
        raise InvalidRequest(
            "the scopes are not what a key can have", code=Code.VALIDATION_FAILED, faults=faults
        )


def check_granting(principal: Principal, scopes: Iterable[str]) -> None:
    """Refuse to grant what the grantor may not do.

    Raises:
        Denied: the principal's scopes do not cover these.
    """
    if not covers(principal.scopes, scopes):
        raise Denied("a key can have only scopes that your own cover")


def covers(granting: Sequence[str], asked: Iterable[str]) -> bool:
    """Whether each of the scopes that are asked for is covered by one that grants it."""
    mine = [parsed for scope in granting if (parsed := _parsed(scope)) is not None]
    theirs = [_parsed(scope) for scope in asked]
    return all(one is not None and any(_covers(own, one) for own in mine) for one in theirs)


def is_operator(principal: Principal) -> bool:
    """Whether the installation is this principal's: other tenants' keys are theirs to see."""
    return principal.tenant == TENANT_DEFAULT and EVERYTHING in principal.scopes


def tenant_for(principal: Principal, asked: str | None) -> str:
    """Find the tenant whose keys a request is about.

    Raises:
        Denied: another tenant's than the principal's.
    """
    if asked is None or asked == principal.tenant:
        return principal.tenant
    if not is_operator(principal):
        raise Denied("only the operator may name a tenant")
    return asked


def _covers(own: tuple[str, str], other: tuple[str, str]) -> bool:
    if own[0] not in (EVERYTHING, other[0]):
        return False
    pattern, asked = own[1], other[1]
    # A pattern that is asked for stands for the names that it begins; an exact name for itself.
    return asked == pattern or (pattern.endswith("*") and asked.startswith(pattern[:-1]))


def _parsed(scope: str) -> tuple[str, str] | None:
    try:
        return parse_scope(scope)
    except InvalidRequest:
        # A token may carry scopes of other applications; they grant nothing here.
        return None


def _fault_of(scope: str) -> str | None:
    try:
        parse_scope(scope)
    except StoreError as error:
        return error.message
    return None
