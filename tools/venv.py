"""Bring .venv to where a make target needs it: `python3 tools/venv.py [--exact] [EXTRA ...]`.

Makes .venv if there is none that works, installs this checkout into it (editable) with the extras named, held
to constraints.txt, and returns at once when that has been done already. "Already" means: for the same
pyproject.toml and constraints.txt, at the same place on disk, with every package still there. What other
targets have installed stays.

An install that was killed half-way is not trusted: the next run makes .venv anew. An install that pip itself
gave up (no network, no such version) leaves .venv as it was. Two runs at a time wait for each other.

Only the standard library, and only syntax that every Python 3 reads, so that a Python too old gets a sentence
and not a SyntaxError.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
RECORD = os.path.join(VENV, "unienv-installed.json")
# What the user's own pip settings must not change, and what keeps pip quiet and from asking.
PIP_SETTINGS = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_USER": "0",
}
# Held while .venv is changed, and not empty meanwhile: text in a lock nobody holds tells of a killed run.
LOCK = os.path.join(ROOT, ".venv.lock")
INPUTS = [os.path.join(ROOT, "pyproject.toml"), os.path.join(ROOT, "constraints.txt")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--exact", action="store_true", help="the Python that runs this, no other")
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    args = parser.parse_args()
    with open(LOCK, "a+") as lock:
        take(lock)
        lock.seek(0)
        cut_off = lock.read() != ""
        extras, key = set(args.extras), inputs_key()
        usable = not cut_off and venv_works(this_python() if args.exact else None)
        record = read_record() if usable else {}
        if record.get("key") == key:
            if extras <= set(record["extras"]) and set(record["packages"]) <= set(installed_packages()):
                return
            extras |= set(record["extras"])
        python = None if usable else find_python(args.exact)
        lock.write("changing .venv\n")
        lock.flush()
        if python is not None:
            make_venv(python)
        if os.path.exists(RECORD):
            os.remove(RECORD)
        install(sorted(extras), lock)
        write_record({"key": key, "extras": sorted(extras), "packages": installed_packages()})
        lock.truncate(0)


def take(lock):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another run is setting up .venv; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)


def inputs_key():
    """A digest of what decides the install; the place counts, since an editable install points at it."""
    digest = hashlib.sha256(ROOT.encode())
    for path in INPUTS:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def read_record():
    try:
        with open(RECORD) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def write_record(record):
    with open(RECORD + ".new", "w") as file:
        json.dump(record, file, indent=1)
    os.replace(RECORD + ".new", RECORD)


def installed_packages():
    lib = os.path.join(VENV, "lib")
    names = []
    for python in os.listdir(lib):  # one, such as python3.11
        names += os.listdir(os.path.join(lib, python, "site-packages"))
    return sorted(name for name in names if name.endswith(".dist-info"))


def supported():
    """What the classifiers say is tested, as two (major, minor): from the first up to, but without, the second."""
    with open(INPUTS[0]) as file:
        minors = [int(minor) for minor in re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', file.read())]
    return (3, min(minors)), (3, max(minors) + 1)


def is_supported(version):
    low, high = supported()
    return version is not None and low <= version < high


def this_python():
    return sys.version_info[0], sys.version_info[1]


def version_of(python, code=""):
    """(major, minor) of that interpreter, None where it does not run or `code` raises in it."""
    try:
        out = subprocess.run(
            [python, "-c", code + "\nimport sys; print(sys.version_info[0], sys.version_info[1])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        ).stdout.split()
        return int(out[0]), int(out[1])
    except (OSError, ValueError, IndexError, subprocess.CalledProcessError):
        return None


def venv_works(wanted):
    # Without its pyvenv.cfg, .venv/bin/python still runs, as the one it links to: hence the prefix.
    check = "import sys, os, pip; assert os.path.samefile(sys.prefix, {!r})".format(VENV)
    version = version_of(VENV_PYTHON, check)
    return is_supported(version) and wanted in (None, version)


def find_python(exact):
    """The interpreter to make .venv with: this one, else (unless `exact`) a python3.N of the search path."""
    if is_supported(this_python()):
        # The base of any virtual environment: this may be running from the very .venv that is to be replaced.
        return getattr(sys, "_base_executable", None) or sys.executable
    low, high = supported()
    if not exact:
        for minor in range(high[1] - 1, low[1] - 1, -1):
            python = shutil.which("python3.{}".format(minor))
            if python and version_of(python) == (3, minor):
                return python
    return stop(
        "Python 3.{} to 3.{} is needed, and {} is {}.{}. Name another: make PYTHON=/path/to/python3".format(
            low[1], high[1] - 1, sys.executable, sys.version_info[0], sys.version_info[1]
        )
    )


def make_venv(python):
    say("making .venv with {}".format(python))
    made = subprocess.run([python, "-m", "venv", "--clear", VENV], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode == 0:
        return
    # Some systems package ensurepip apart from Python. Any pip can bring one into the new environment.
    bare = subprocess.run([python, "-m", "venv", "--clear", "--without-pip", VENV], stderr=subprocess.DEVNULL)
    major_minor = version_of(VENV_PYTHON)
    if bare.returncode == 0 and major_minor is not None:
        site = os.path.join(VENV, "lib", "python{}.{}".format(*major_minor), "site-packages")
        if run_pip(python, "--target", site, "pip") == 0:
            return
    sys.stderr.write(made.stdout.decode(errors="replace"))
    stop(
        "could not make .venv with {}. On Debian and Ubuntu the package python3-venv is needed; elsewhere, "
        "name a complete Python: make PYTHON=/path/to/python3".format(python)
    )


def install(extras, lock):
    what = "[{}]".format(",".join(extras)) if extras else ""
    say("installing unienv{} into .venv; with nothing in pip's cache this takes minutes".format(what))
    status = run_pip(VENV_PYTHON, "-c", INPUTS[1], "-e", "." + what)
    if status > 0:  # pip looks everything up before it changes anything; below 0 a signal ended it
        lock.truncate(0)
    if status != 0:
        stop("the install did not succeed; pip's reason is above")


def run_pip(python, *arguments):
    command = [python, "-m", "pip", "install", "-q"]
    command += arguments
    return subprocess.run(command, cwd=ROOT, env=dict(os.environ, **PIP_SETTINGS)).returncode


def say(text):
    print("unienv: " + text, flush=True)


def stop(text):
    sys.exit("unienv: " + text)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        stop("interrupted")
