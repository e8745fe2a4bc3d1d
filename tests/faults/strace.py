"""Compare the calls that the shim counts with those the kernel sees, by name.

python -m tests.faults.strace [SCENARIO…]
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults.harness import import_all, run
from tests.faults.scenarios import make_state, scenarios

# the C library's names for one system call
_SAME = {"open": "openat", "open64": "openat", "openat64": "openat", "ftruncate64": "ftruncate", "remove": "unlink"}
_SAME |= {"pwrite": "pwrite64", "sendfile64": "sendfile", "renameat2": "rename"}
_SAME |= {"unlinkat": "unlink", "rmdir": "unlink", "mkdirat": "mkdir", "linkat": "link"}
_BY_PATH = ("open", "creat", "rename", "unlink", "rmdir", "mkdir", "link", "symlink", "truncate")
_CALLS = "open,openat,creat,write,pwrite64,writev,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir"
_CALLS += ",mkdirat,link,linkat,symlink,truncate,ftruncate,fallocate,sendfile,copy_file_range,io_uring_enter"
_INSIDE = "--inside"  # the process that is traced


def main() -> int:
    """Return 1 where they differ."""
    if sys.argv[1:2] == [_INSIDE]:
        return _one(sys.argv[2], Path(sys.argv[3]))
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for scenario in scenarios(Path(folder) / "work"):
            if scenario.processes > 1 or (sys.argv[1:] and scenario.name not in sys.argv[1:]):
                continue
            trace = Path(folder) / "trace"
            strace = f"strace -f --seccomp-bpf -y -qq -s 4096 -e trace={_CALLS} -o {trace}".split()
            command = [*strace, sys.executable, "-m", "tests.faults.strace", _INSIDE, scenario.name, folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            pairs = re.findall(r"(\w+)=(\d+)", done.stdout.splitlines()[-1])
            counted = Counter({name: int(count) for name, count in pairs})
            seen = _seen(trace.read_text(errors="replace"), f"{folder}/work")
            raw = seen.pop("renameat", 0)  # safetensors calls the kernel itself to rename a file in a temporary folder
            verdict = (
                f"the same ({raw} renames past the C library)" if seen == counted else f"but counted {dict(counted)}"
            )
            print(f"{scenario.name}: {seen.total()} calls, {dict(seen)}, {verdict}", flush=True)  # noqa: T201
            wrong += seen != counted
    return int(wrong > 0)


def _one(name: str, folder: Path) -> int:
    import_all()
    scenario = next(each for each in scenarios(folder / "work") if each.name == name)
    make_state(scenario, folder / "work", folder / "log")
    (folder / "begin-marker").write_text("")
    ended = run([scenario.command], folder / "work", folder / "log")
    (folder / "end-marker").write_text("")
    names = Counter(_SAME.get(each, each) for each in ended.names)
    print(" ".join(f"{key}={value}" for key, value in names.items()))  # noqa: T201
    return 0


def _seen(trace: str, below: str) -> Counter[str]:
    """Count the calls between the two marks that change something below a folder."""
    inside = trace.partition("begin-marker")[2].partition("end-marker")[0]
    seen: Counter[str] = Counter()
    for line in inside.splitlines():
        match = re.match(r"\d+ +(\w+)\(([^\"]*)(.*)", line)
        if match is None:
            continue
        name, first, rest = match.groups()
        place = first + rest if name.startswith(_BY_PATH) else first
        reads = name.startswith("open") and not re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", rest)
        if below in place and not reads:
            seen[_SAME.get(name, name)] += 1
    return seen


if __name__ == "__main__":
    sys.exit(main())
