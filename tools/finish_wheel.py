"""Usage: finish_wheel.py WHEEL OUTPUT_FOLDER: make of what pip has built a wheel that other machines can install.

The compiled module fits one torch, in any patch release: the wheel's version names it (isthmus 0.1.0+torch2.11.cu130),
and its requirements demand it. The tier over MPI is left out, which fits the MPI of this machine alone. auditwheel
names the oldest platform that the rest runs on, and puts hwloc and what else that platform lacks inside, each with the
license that its package has on this system; libraries of torch and NVIDIA stay outside, where pip has put them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from isthmus.base.native import fitting

# In torch's wheels, or in those that torch requires.
OUTSIDE = ("libtorch*.so*", "libc10*.so*", "libcudart.so.*", "libnccl.so.*")


def torch_version(package: Path) -> str:
    """Return which torch the package's module fits, such as 2.11+cu130."""
    values: dict[str, str] = {}
    exec((package / "_build_info.py").read_text(), values)
    return fitting(values["TORCH_VERSION"])


def for_torch(metadata: str, torch: str) -> str:
    """Return a wheel's metadata with the torch that it fits, in its version and its requirements."""
    local = "torch" + torch.replace("+", ".")
    release = torch.partition("+")[0]
    any_patch = ".*" if release.count(".") == 1 else ""
    named = re.sub(r"^(Version: [^+\n]+).*$", rf"\1+{local}", metadata, count=1, flags=re.MULTILINE)
    return re.sub(
        r"^Requires-Dist: torch\b.*$",
        f"Requires-Dist: torch=={release}{any_patch}",
        named,
        count=1,
        flags=re.MULTILINE,
    )


def finish(wheel: Path, output: Path) -> None:
    """Write the finished wheel to a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        run(sys.executable, "-m", "wheel", "unpack", "--dest", scratch, str(wheel))
        (tree,) = Path(scratch).iterdir()
        package = tree / "isthmus"
        for path in package.glob("_mpi.*.so"):
            path.unlink()
        for path in package.glob("_C.*.so"):
            run("patchelf", "--set-rpath", "$ORIGIN", str(path))  # torch has loaded its libraries before
        (info,) = tree.glob("*.dist-info")
        metadata = for_torch((info / "METADATA").read_text(), torch_version(package))
        (info / "METADATA").write_text(metadata)
        version = re.search(r"^Version: (.*)$", metadata, re.MULTILINE)
        assert version is not None
        info.rename(tree / f"isthmus-{version[1]}.dist-info")
        packed = Path(scratch) / "packed"
        packed.mkdir()
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", str(packed), str(tree))
        (built,) = packed.iterdir()
        excluded = [argument for name in OUTSIDE for argument in ("--exclude", name)]
        run("auditwheel", "repair", *excluded, "--wheel-dir", scratch, str(built))
        (repaired,) = Path(scratch).glob("*.whl")
        run(sys.executable, "-m", "wheel", "unpack", "--dest", f"{scratch}/repaired", str(repaired))
        (tree,) = Path(scratch, "repaired").iterdir()
        (licenses,) = (folder / "licenses" for folder in tree.glob("*.dist-info"))
        licenses.mkdir(exist_ok=True)
        for library in tree.glob("*.libs/*"):
            name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", library.name)  # auditwheel's mark
            (licenses / f"{name.partition('.')[0]}.txt").write_text(license_of(name))
        output.mkdir(parents=True, exist_ok=True)
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", str(output), str(tree))


def license_of(library: str) -> str:
    """Return the copyright and licenses of the Debian package that a library, libexpat.so.1.8.10, is of."""
    package = run("dpkg-query", "--search", f"*/{library}").partition(":")[0]
    text = Path("/usr/share/doc", package, "copyright").read_text()
    named = sorted(set(re.findall(r"/usr/share/common-licenses/[\w.-]*\w", text)))
    return "\n".join([text, *(f"{path}:\n\n{Path(path).read_text()}" for path in named)])


def run(*command: str) -> str:
    """Run a command and return its output; end the program with what it says if it fails."""
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout


if __name__ == "__main__":
    finish(Path(sys.argv[1]), Path(sys.argv[2]))
