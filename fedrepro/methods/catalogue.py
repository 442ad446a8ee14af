"""The catalogue of methods: every module of this folder enters its own."""

import pkgutil
from importlib import import_module

import fedrepro.methods
from fedrepro.core.names import pick
from fedrepro.core.setting import Setting
from fedrepro.methods.compose import METHODS, Method

for _found in pkgutil.iter_modules(fedrepro.methods.__path__, "fedrepro.methods."):
    if _found.name != __name__:
        import_module(_found.name)


def build(setting: Setting) -> Method:
    """Build the method that a setting names.

    Raises:
        ValueError: for an unknown method, with the nearest real name.
    """
    return pick("method", setting.method, METHODS)(setting)
