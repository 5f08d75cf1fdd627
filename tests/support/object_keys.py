"""Object keys of the tenant that everything is of where nobody is asked who they are.

Most tests know of one tenant; those of several say which, with bottomless.formats.keys.
"""

from functools import partial

from bottomless.formats import keys
from bottomless.model.names import TENANT_DEFAULT

stream_prefix = partial(keys.stream_prefix, tenant=TENANT_DEFAULT)
fragment_key = partial(keys.fragment_key, tenant=TENANT_DEFAULT)
group_key = partial(keys.group_key, tenant=TENANT_DEFAULT)
root_key = partial(keys.root_key, tenant=TENANT_DEFAULT)
registry_key = partial(keys.registry_key, tenant=TENANT_DEFAULT)
consumers_key = partial(keys.consumers_key, tenant=TENANT_DEFAULT)
