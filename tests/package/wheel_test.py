#!/usr/bin/env python3
"""wheel_test.py SOURCE PREFIX LIBTORCH WORK: makes a wheel of the installation in PREFIX, reads it, installs it in WORK
without a network, and uses it there beside right and wrong LibTorches, with right and wrong owners."""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

SOURCE, PREFIX, LIBTORCH, WORK = (Path(word) for word in sys.argv[1:])
SITE = WORK / "site"
TRAIN = """
import json, sys, vernier
run = vernier.train({"run": {"steps": 3, "output": sys.argv[1]}, "task": {"use": "mlp"}, "optimizer": {"use": "sgd"},
                     "monitor": [{"use": "jsonl"}], "checkpoint": {"use": "rolling", "every": 3}},
                    optimizer={"learning_rate": 0.25})
assert [float(step) for step in run.metrics["step"]] == [1, 2, 3], run.metrics
assert all(rate == 0.25 for rate in run.metrics["learning_rate"]), run.metrics
assert vernier.run(run.folder).summary["steps"] == 3
again = vernier.train(str(run.folder / "config.toml"), run={"resume": "auto"})  # it has all its steps
assert again.folder == run.folder, again
assert vernier.cmake_dir().is_dir() and vernier.libtorch_dir().is_dir() and vernier.program().is_file()
try:
    vernier.train(str(run.folder / "config.toml"), task={"no_such_key": 1})
except vernier.TrainingError as error:
    assert error.status == 2 and "no_such_key" in str(error), error
else:
    sys.exit("a wrong key was trained")
"""


def check(is_right, text):
    if not is_right:
        sys.exit(f"wheel_test.py: {text}")


def call(*command, **settings):
    """Returns the exit status, and what was printed."""
    path = f"{SITE}/bin:{os.environ['PATH']}"
    environment = dict(os.environ, PYTHONPATH=str(SITE), PATH=path, **settings)
    for name in ("VERNIER_PLUGIN_PATH", "LD_LIBRARY_PATH", "VERNIER_CALLED_AS"):
        environment.pop(name, None)
    done = subprocess.run([str(word) for word in command], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env=environment, cwd=WORK)
    return done.returncode, done.stdout


def expect(status, words, *command, **settings):
    got, text = call(*command, **settings)
    check(got == status and all(word in text for word in words), f"{command}: {got}, not {status} with {words}:\n{text}")
    return text


def read_wheel(wheel):
    name = re.fullmatch(r"vernier-([0-9.]+)-py3-none-manylinux_2_([0-9]+)_x86_64\.whl", wheel.name)
    check(name, f"{wheel.name}: a strange name")
    check(wheel.stat().st_size <= 32 << 20, f"{wheel} is too large: {wheel.stat().st_size} bytes")
    version, glibc = name.groups()
    build = int(os.confstr("CS_GNU_LIBC_VERSION").split(".")[-1])
    check(28 <= int(glibc) <= max(build, 35), f"{wheel.name}: the tag says a newer glibc than the build's {build}")
    with zipfile.ZipFile(wheel) as archive:
        check(archive.testzip() is None, "the archive is damaged")
        names = archive.namelist()
        information, data = f"vernier-{version}.dist-info", f"vernier-{version}.data/data/share"
        for needed in ("vernier/__init__.py", "vernier/__main__.py", "vernier/bin/vernier", "vernier/bin/vernier-train",
                       "vernier/lib/libvernier_sdk.so", "vernier/lib/libvernier_trainer.so", "vernier/include/vernier/sdk.h",
                       "vernier/include/vernier/trainer.h", "vernier/lib/vernier/plugins/optimizer/adamw.so",
                       "vernier/lib/cmake/Vernier/VernierConfig.cmake", "vernier/share/vernier/templates/plugin/CMakeLists.txt",
                       f"{data}/man/man1/vernier.1", f"{data}/bash-completion/completions/vernier",
                       f"{data}/zsh/site-functions/_vernier", f"{data}/fish/vendor_completions.d/vernier.fish",
                       f"{information}/licenses/LICENSE"):
            check(needed in names, f"{needed} is not in the wheel")
        strange = [str(path).encode() for path in {SOURCE, PREFIX, LIBTORCH, LIBTORCH.resolve(), Path.home() / ".cache"}]
        for entry in archive.infolist():
            mode = entry.external_attr >> 16
            text = archive.read(entry)
            check(mode in (0o100644, 0o100755), f"{entry.filename}: mode {mode:o}")
            check(mode & 1 or not entry.filename.startswith("vernier/bin/"), f"{entry.filename} cannot be executed")
            for path in strange:
                check(path not in text, f"{entry.filename} contains {path.decode()}, a path of this machine")
        metadata = archive.read(f"{information}/METADATA").decode()
        torch = re.search(r'TORCH_VERSION_MINOR (\d+)', (LIBTORCH / "include/torch/headeronly/version.h").read_text())[1]
        check(f"\nRequires-Dist: torch==2.{torch}.*\n" in metadata and f"\nVersion: {version}\n" in metadata, metadata)
        check(f"\nTag: py3-none-manylinux_2_{glibc}_x86_64\n" in archive.read(f"{information}/WHEEL").decode(), "another tag")
        for line in archive.read(f"{information}/RECORD").decode().splitlines():
            file, digest, size = line.rsplit(",", 2)
            if digest:
                found = archive.read(file)
                wanted = base64.urlsafe_b64encode(hashlib.sha256(found).digest()).rstrip(b"=").decode()
                check(digest == f"sha256={wanted}" and int(size) == len(found), f"RECORD is wrong for {file}")
            names.remove(file)
        check(not names, f"RECORD lacks {names}")
    return version, f"2.{torch}"


def install(wheel, version):
    """pip unpacks the wheel; without pip this does, and the command is that of `python -m vernier`."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(SITE), str(wheel)]
    if subprocess.run(pip, check=False, stderr=subprocess.DEVNULL).returncode == 0:
        return ["vernier"]
    print("without pip: the installation of the command is not tried")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(SITE)], check=True)
    for program in (SITE / "vernier/bin").iterdir():
        program.chmod(0o755)
    return [sys.executable, "-m", "vernier"]


def check_symbols():
    """A LibTorch may be built without MKL."""
    for library in (SITE / "vernier/lib").glob("libvernier*.so*"):
        symbols = subprocess.run(["nm", "-D", "--undefined-only", str(library)], check=True, stdout=subprocess.PIPE, text=True)
        check("MKL_" not in symbols.stdout, f"{library} needs a LibTorch with MKL")


def link_torch(target):
    place = SITE / "torch"
    if place.is_symlink():
        place.unlink()
    if target:
        place.symlink_to(target)


def try_libtorches(vernier, minor):
    other = WORK / "other/torch"
    (other / "include/torch/headeronly").mkdir(parents=True)
    (other / "lib").mkdir()
    (other / "lib/libtorch_cpu.so").touch()
    header = (LIBTORCH / "include/torch/headeronly/version.h").read_text()
    (other / "include/torch/headeronly/version.h").write_text(re.sub(r"(VERSION_MINOR) \d+", r"\1 99", header))
    remedy = f"pip install 'torch=={minor}.*'"
    for target, words in ((other, ("2.99.0", f"{minor}.", remedy)), (None, ("LibTorch is not found", remedy))):
        link_torch(target)
        for verb in (["plugins"], ["train", "none.toml"], ["formats"], ["tokenize", "none"], ["--libtorch-dir"]):
            text = expect(2, words, *vernier, *verb)
            check(len(text.splitlines()) == 1, text)
        expect(0, ["vernier "], *vernier, "--version")
        expect(0, ["lib/cmake/Vernier"], *vernier, "--cmake-dir")
    # In another folder of packages, as that of a user, or of the system below a virtual environment.
    elsewhere = WORK / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "torch").symlink_to(LIBTORCH)
    environment = {"PYTHONPATH": f"{SITE}:{elsewhere}"}
    done = subprocess.run([sys.executable, "-m", "vernier", "plugins"], check=False, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, **environment))
    check(done.returncode == 0 and "adamw" in done.stdout, "torch in another folder of packages is not found")
    link_torch(LIBTORCH)


def try_owners(vernier):
    """The environment belongs to a colleague, or to the group of a container; a plugin to somebody else."""
    if os.geteuid() != 0:
        print("not root: plugins of other users are not tried")
        return
    package, plugin = SITE / "vernier", SITE / "vernier/lib/vernier/plugins/optimizer/adamw.so"

    def own(user, group, mode):
        for path in [package, *package.rglob("*")]:
            os.chown(path, user, group)
            path.chmod((path.stat().st_mode & ~0o022) | mode)
    refused = "adamw.so: belongs to another user (id 2)"
    for user, group, mode in ((1, 1, 0), (1, 1, 0o020), (0, 1, 0o020)):
        own(user, group, mode)
        text = expect(0, ["adamw"], *vernier, "plugins")
        check("refused" not in text and "belongs to" not in text and "can be written" not in text, text)
        os.chown(plugin, 2, group)
        expect(0, [refused], *vernier, "plugins")
        os.chown(plugin, user, 2)
        plugin.chmod(0o775)
        expect(0, ["adamw.so: can be written to by others"], *vernier, "plugins")
    own(1, 1, 0o022)
    expect(0, ["can be written to by others"], *vernier, "plugins")
    own(0, 0, 0)


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    maker = [sys.executable, str(SOURCE / "packaging/wheel/wheel.py"), str(PREFIX), str(WORK / "dist")]
    wheel = Path(subprocess.run(maker, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    version, minor = read_wheel(wheel)
    vernier = install(wheel, version)
    check_symbols()
    link_torch(LIBTORCH)
    expect(0, [f"vernier {version}"], *vernier, "--version")
    text = expect(0, ["adamw"], *vernier, "plugins")
    check("refused" not in text, text)
    expect(0, [str(SITE / "vernier/lib/cmake/Vernier")], *vernier, "--cmake-dir")
    expect(0, [str(SITE / "torch")], *vernier, "--libtorch-dir")
    expect(0, ["done after 3 steps"], sys.executable, "-c", TRAIN, WORK / "runs/a")
    text = expect(0, ["  vernier plugins\n".strip()], *vernier, "train", WORK / "runs/a/config.toml")
    check(f"{SITE}/vernier/bin" not in text, f"it names the inner program:\n{text}")
    text = expect(0, ["vernier train run.toml"], *vernier, "new", "plugin", "callback", "mine")
    check(f"{SITE}/vernier/bin" not in text, f"it names the inner program:\n{text}")
    text = expect(0, [], "cmake", "-S", WORK / "mine", "-B", WORK / "mine/build", f"-DVernier_DIR={SITE}/vernier/lib/cmake/Vernier")
    check(f"LIBTORCH_ROOT:PATH={SITE}/torch\n" in (WORK / "mine/build/CMakeCache.txt").read_text(), "it took another LibTorch")
    try_libtorches(vernier, minor)
    try_owners(vernier)


if __name__ == "__main__":
    main()
