"""Native code: libraries that a pack asks its runtime to load. They are reported, never loaded."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.audit.checks import Finding, finding
from packimport.audit.options import options
from packimport.pack.container import Container


def native_code(container: Container) -> Iterator[Finding]:
    """A note for each place in genai_config.json that names a library."""
    for option in options(container, "custom_ops_library"):
        if option.value is None:
            continue
        library = option.value if isinstance(option.value, str) else option.place
        where = "it lies in the pack" if container.has(library) else "it does not lie in the pack"
        yield finding(
            "RPE017",
            f"running the pack loads native code; {where}. Nothing of it was loaded here",
            pointer=option.place,
            found=library,
            fix="run it only if you trust it: forward-serve --allow-custom-ops SHA256",
        )
