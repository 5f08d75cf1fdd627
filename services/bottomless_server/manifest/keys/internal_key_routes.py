"""The internal path that the gate of every service asks, to check an API key.

Contract: openapi/internal.yaml. It answers what the key is now and keeps nothing: how long that
may be believed is the gate's to say.
"""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.model.api_key import KeyState, parse_key_id
from bottomless.model.names import TENANT_DEFAULT
from bottomless_server.core.scopes import EVERYTHING
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.keys.keys import Keys
from bottomless_server.manifest.keys.root_key import ROOT_KEY_ID, RootKey
from bottomless_server.protocol.keys import KEY, KeySaid, encode_key, key_id_in, key_path
from bottomless_server.runtime.http.app import message_response, parse_query
from bottomless_server.stores.keys import key_not_found

ROOT_PATH = key_path(ROOT_KEY_ID)


def add_internal_key_routes(api: FastAPI, context: Context, keys: Keys, root: RootKey) -> None:
    async def get(request: Request) -> Response:
        parse_query(request.scope, {})
        asked = key_id_in(request.path_params)
        if asked == ROOT_KEY_ID:
            return await get_root()
        key_id = parse_key_id(asked)
        if key_id is None:
            raise key_not_found()
        key, now = (await keys.records.find(key_id)).key, context.clock()
        said = KeySaid(
            key_id=key.key_id,
            secret_sha256=tuple(one.sha256 for one in key.good_secrets(now)),
            tenant=key.tenant,
            scopes=tuple(key.scopes),
            expires_at=key.expires_at,
            state=key.state(now).value,
        )
        return message_response(encode_key(said))

    async def get_root() -> Response:
        sha256 = await root.sha256()
        if sha256 is None:
            raise key_not_found()
        said = KeySaid(
            key_id=ROOT_KEY_ID,
            secret_sha256=(sha256,),
            tenant=TENANT_DEFAULT,
            scopes=(EVERYTHING,),
            expires_at=None,
            state=KeyState.ACTIVE.value,
        )
        return message_response(encode_key(said))

    api.add_api_route(KEY, get, methods=["GET"])
