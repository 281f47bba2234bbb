"""What the machine has beside a GPU."""

import os
from pathlib import Path


def main_memory(root: Path = Path("/")) -> tuple[int, int]:
    """(available, total) main memory, within the limit of a container (cgroup v2) where there is one.

    root: where proc and sys are found.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = page * os.sysconf("SC_AVPHYS_PAGES")
    meminfo, group = root / "proc/meminfo", root / "sys/fs/cgroup"
    if meminfo.exists():  # counts what the page cache would give back
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return free, total
    return min(free, max(0, limit - used)), min(total, limit)
