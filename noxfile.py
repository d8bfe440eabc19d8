"""The only matrix: which environments there are, and what runs in each.

``nox`` runs what answers in minutes, for each change; ``nox -t nightly`` runs what takes long and seldom
finds anything. ``nox -s "tests(torch)"`` runs one session, and ``nox -l`` lists them. A backend has one
environment, `.nox/tests-<backend>`. A session about several backends runs in each of their environments in
turn, since no environment holds them all: MXNet wants NumPy 1.23, the others want NumPy 2.

The core is built once for all environments, and pip runs only where something has changed (`install`).
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "types", "tests", "third-party-backend", "same-answers"]

FRAMEWORKS = {
    "numpy": ["onnx", "onnxruntime"],  # its sessions are ops of the NumPy backend
    # One version by name: pip then takes a build of it that is already at hand (PyTorch's small
    # CPU-only wheels carry the same number), where a bare "torch" takes the newest one and with it
    # gigabytes of CUDA packages.
    "torch": ["torch==2.13.0"],
    "tensorflow": ["tensorflow==2.21.*"],
    # MXNet's last release uses `numpy.bool`, gone in NumPy 1.24; 1.23.5 is the last NumPy that it
    # imports with, and it runs on Python 3.11. pyarrow 26 wants NumPy 2.
    "mxnet": ["mxnet==1.9.1", "numpy==1.23.5", "pyarrow<26"],
    "jax": ["jax==0.10.*", "equinox", "flax", "optax"],
}
"""The framework that the tests of each backend run with; an adapter itself allows a wider range."""

DISTRIBUTED = {
    "torch": ["lightning==2.6.*", "accelerate==1.*", "ray[data,serve,train]==2.*", "httpx"],
    "tensorflow": [],
    "mxnet": [],
    # jax.export writes its files with flatbuffers.
    "jax": ["flatbuffers"],
}
"""What folds live inside of, on several devices and processes, beside the framework itself."""

EXTREMES = {
    "numpy": ["numpy==1.23.5", "pyarrow<26"],
    "torch": ["torch==2.4.0", "numpy<2.3"],
    "tensorflow": ["tensorflow==2.16.1", "keras==3.0.5"],
    "jax": ["jax==0.6.2", "jaxlib==0.6.2"],
}
"""The oldest version that each adapter allows; MXNet has just one. The newest is what pip finds."""

DOCUMENTATION = ["sphinx==9.0.*", "furo==2025.12.*", "myst-nb==1.4.*", "sphinx-copybutton==0.5.*"]
"""What makes the site out of Markdown and docstrings. Versions by name, since a warning is an error."""

PROCESSES = ("--numprocesses", "auto", "--maxprocesses", "2", "--dist", "worksteal")
"""Two processes share the tests of a session, on two cores or more: each test takes one core. What JAX
compiles during its suite fills some gigabytes in each, so more would not fit into common machines."""

DOCTESTS = {name: [f"multifold_{name}"] for name in FRAMEWORKS} | {
    "numpy": ["multifold", "multifold_compat"]
}
"""The packages whose docstrings hold examples that are run with a backend."""

KEEP_COMPILED = {
    "JAX_COMPILATION_CACHE_DIR": str(Path(".nox", "compiled-by-jax").absolute()),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""JAX takes most of its time to compile, and keeps what it has compiled, by program and version."""

BY_REFERENCES = [
    "tests/test_conformance.py",
    "tests/test_known_answers.py",
    "tests/engine/compiled/test_native.py",
    "tests/engine/run/test_launcher.py",
]
"""What runs each time without compiled code; `everything(numpy)` runs all of it in that way."""

PYTHON = {"mxnet": "3.11"}
"""Backends that need a certain interpreter (NumPy 1.23 knows none newer); the others take nox's."""


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, names, docstrings and layout with ruff, and spelling with codespell and typos."""
    session.install("ruff==0.17.*", "codespell==2.4.*", "typos==1.52.*")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("codespell")
    session.run("typos")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of the package, the benchmarks and the adapters with mypy, without any framework."""
    install(session, "cli,test", "-e", "./benchmarks", "-e", "./compat", "mypy==2.4.*")
    packages = sorted(Path().glob("backends/*/multifold_*"))
    session.run(
        "mypy", "multifold", "compat/multifold_compat", "benchmarks/multifold_bench", *map(str, packages)
    )


@nox.session
@nox.parametrize(
    "python,backend",
    [nox.param(PYTHON.get(name), name, id=name) for name in FRAMEWORKS],
)
def tests(session: nox.Session, backend: str) -> None:
    """Run the tests and doctests that a backend can fail (options such as -k behind ``--``).

    Tests without a backend run in tests(numpy): see `pytest_collection_modifyitems` in `conftest.py`.
    """
    adapter = Path("backends", backend)
    folders = ["./benchmarks[plot]", "./compat", *([f"./{adapter}"] if adapter.is_dir() else [])]
    editable = [argument for folder in folders for argument in ("-e", folder)]
    install(session, "arrow,cli,examples,plain,serving,test", *editable, *FRAMEWORKS[backend])
    options = ("--backend", backend, "--doctest-modules", "--pyargs")
    one_thread = {"OMP_NUM_THREADS": "1"}  # each of the processes would take all cores else
    if backend == "jax":
        one_thread |= KEEP_COMPILED
    paths = ["tests", "compat/tests", *DOCTESTS[backend], *map(str, adapter.glob("tests"))]
    session.run("pytest", *options, *PROCESSES, *paths, *session.posargs, env=one_thread)
    if backend == "numpy" and not session.posargs:  # and a little by the references of the compiled code
        references = {**one_thread, "MULTIFOLD_NATIVE": "0"}
        session.run("pytest", "-q", *options, *BY_REFERENCES, env=references)


@nox.session(venv_backend="none", tags=["nightly"])
@nox.parametrize("backend", list(FRAMEWORKS), ids=list(FRAMEWORKS))
def everything(session: nox.Session, backend: str) -> None:
    """Run all tests with one backend, those of the benchmarks too; NumPy's by the references, too."""
    options = ["-P", "-m", "pytest", "--nightly", "--doctest-modules", "--pyargs", "--backend", backend]
    if backend == "mxnet":  # what has no backend runs on its old NumPy as well
        options += ["--backend", "numpy"]
    paths = [
        "tests",
        "tests/soak.py",
        "compat/tests",
        "benchmarks/tests",
        "multifold_bench",
        *DOCTESTS[backend],
    ]
    paths += map(str, Path("backends", backend).glob("tests"))
    run_in(session, backend, *options, *PROCESSES, *paths, *session.posargs)
    if backend == "numpy":
        core = ("tests", "tests/soak.py", "multifold")
        references = {"MULTIFOLD_NATIVE": "0"}
        run_in(session, backend, *options, *PROCESSES, *core, *session.posargs, env=references)


@nox.session(tags=["nightly"])
@nox.parametrize(
    "python,backend",
    [nox.param(PYTHON.get(name), name, id=name) for name in DISTRIBUTED],
)
def distributed(session: nox.Session, backend: str) -> None:
    """Run two to four local processes of one backend, and the trainers that start them, on the loopback."""
    adapter = Path("backends", backend)
    # Processes that wait for each other must not wait for ever. "thread" ends pytest itself: Ray's compiled
    # code hears no signal, and a trainer whose worker has died may wait there.
    # Some processes abort while they end: a test that fails is run once more.
    patience = ("pytest-timeout==2.*", "pytest-rerunfailures>=15")
    packages = (*FRAMEWORKS[backend], *DISTRIBUTED[backend], *patience)
    install(session, "arrow,cli,examples,test", "-e", "./benchmarks", "-e", f"./{adapter}", *packages)
    options = ("--backend", backend, "--timeout", "120", "--timeout-method", "thread", "--reruns", "1")
    paths = (str(adapter / "distributed"), "benchmarks/distributed")
    session.run("pytest", *options, *paths, *session.posargs)


@nox.session(tags=["nightly"])
def docs(session: nox.Session) -> None:
    """Build the site, run its tutorials, and fail at any warning: a broken link, an unknown name."""
    site = build_site(session, *session.posargs)
    session.run("python", "tools/check_site.py", str(site))
    session.log(f"open {site / 'index.html'}")


@nox.session(name="docs-light")
def docs_light(session: nox.Session) -> None:
    """Build the site without any framework, in a minute or two, to look at pages while writing them.

    Tutorials are shown and not run, and the reference of the adapters is left out.
    """
    options = ("-t", "light", "-D", "nb_execution_mode=off", *session.posargs)
    site = build_site(session, *options, adapters=())
    session.log(f"open {site / 'index.html'}")


@nox.session
def links(session: nox.Session) -> None:
    """Follow each link to another site, for which it needs a network that reaches them all."""
    build_site(session, "--builder", "linkcheck", "-D", "nb_execution_mode=off", *session.posargs)


def build_site(
    session: nox.Session, *more: str, adapters: Sequence[str] = ("torch", "tensorflow", "jax")
) -> Path:
    """Run Sphinx over the pages and return the folder that it wrote.

    One environment holds all ``adapters`` but MXNet's. Without any, pages that lead to them are no failure.
    """
    folders = ["./benchmarks[plot]", "./compat", *[f"./backends/{x}" for x in adapters]]
    editable = [argument for folder in folders for argument in ("-e", folder)]
    frameworks = [package for name in adapters for package in FRAMEWORKS[name]]
    install(session, "arrow,cli,examples,serving", *editable, *frameworks, *DOCUMENTATION)
    site = Path(session.create_tmp(), "site").resolve()
    shutil.rmtree(site, ignore_errors=True)  # with pages that are no more
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    strict = ("--fail-on-warning", "--keep-going") if adapters else ()
    session.run("sphinx-build", *strict, "--quiet", "-c", "docs", *more, ".", str(site), env=quiet)
    return site


@nox.session(tags=["nightly"])
def coverage(session: nox.Session) -> None:
    """Measure which lines of the core the NumPy tests run, compiled and not; fail below the floor."""
    packages = ("-e", ".[arrow,cli,examples,serving,test]", "-e", "./benchmarks[plot]", "-e", "./compat")
    session.install(*packages, "coverage[toml]>=7.10,<8")
    # Where no test looks: pages and tests must name no folder of a machine, and this file names them all.
    session.env["COVERAGE_FILE"] = str(Path(session.create_tmp(), "coverage").resolve())
    session.run("coverage", "erase")
    for native in ("1", "0"):
        options = ("-m", "pytest", "-q", "--nightly", "--backend", "numpy", "--doctest-modules", *PROCESSES)
        environment = {"MULTIFOLD_NATIVE": native, "OMP_NUM_THREADS": "1"}
        session.run("coverage", "run", *options, "multifold", "tests", env=environment)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report", "--skip-covered", "--show-missing")


@nox.session(tags=["nightly"])
@nox.parametrize("age", ["oldest", "newest"], ids=["oldest", "newest"])
@nox.parametrize("backend", list(EXTREMES), ids=list(EXTREMES))
def extremes(session: nox.Session, backend: str, age: str) -> None:
    """Hold the oldest and the newest versions that an adapter allows to the conformance suite."""
    adapter = Path("backends", backend)
    packages = EXTREMES[backend] if age == "oldest" else []
    folders = ["-e", "./benchmarks", *(["-e", f"./{adapter}"] if adapter.is_dir() else [])]
    install(session, "arrow,cli,examples,test", *folders, *packages)
    of_the_house = ("tests/test_conformance.py", "tests/test_known_answers.py")
    of_the_engine = ("tests/engine/rounds", "tests/engine/plan/test_kept.py")
    session.run("pytest", "-q", "--backend", backend, *of_the_house, *of_the_engine)


@nox.session
def binaries(session: nox.Session) -> None:
    """Build the core's wheels for this system with cibuildwheel, which needs Docker on Linux."""
    session.install("cibuildwheel==4.*")
    session.run("cibuildwheel", *session.posargs)


@nox.session(tags=["nightly"])
def wheels(session: nox.Session) -> None:
    """Build all distributions, look into them, and install them without a compiler (``-- dist v0.2.0``)."""
    session.install("build", "twine")
    temporary = Path(session.create_tmp()).resolve()
    folder, *tag = session.posargs or [temporary / "wheelhouse"]
    house = Path(folder).resolve()
    shutil.rmtree(house, ignore_errors=True)
    session.run("python", "tools/release.py", "build", str(house), *tag)
    session.run("twine", "check", "--strict", *map(str, house.iterdir()))
    cores = sorted(house.glob("multifold_core-*"))  # the wheel where a compiler fails, and the source
    if [core.suffix for core in cores] != [".whl", ".gz"]:
        session.error(f"Expected a wheel and a source distribution of the core. Found {cores}.")
    for core in cores:
        fresh = temporary / core.suffix[1:]
        shutil.rmtree(fresh, ignore_errors=True)
        session.run("python", "-m", "venv", str(fresh), silent=True)
        python = str(fresh / ("Scripts" if sys.platform == "win32" else "bin") / "python")
        pip = (python, "-m", "pip", "install", "--quiet")
        wheel = core.suffix == ".whl"
        here = {"PIP_FIND_LINKS": str(house)} | ({"CC": "no-compiler"} if wheel else {})
        with_core = (f"{core}[cli,test]", "multifold-bench", "multifold-compat")
        session.run(*pip, *with_core, env=here, external=True)
        for name, packages in FRAMEWORKS.items():
            if wheel and name != "numpy":  # its adapter is there, and fits
                session.run(*pip, "--dry-run", f"multifold-{name}", *packages, env=here, external=True)
        in_use = "from multifold._engine import compiled; raise SystemExit(compiled.missing or 0)"
        session.run(python, "-P", "-c", in_use, external=True)
        paths = (
            "tests/test_known_answers.py",
            "tests/engine/compiled/test_native.py",
            "tests/cli/test_cli.py",
        )
        session.run(python, "-P", "-m", "pytest", "-q", *paths, external=True)


@nox.session(name="third-party-backend")
def third_party_backend(session: nox.Session) -> None:
    """Run the conformance suite on the backend in examples/, as its author would."""
    example = Path("examples", "third_party_backend")
    install(session, "test", "-e", f"./{example}", "mlx[cpu]")
    session.run("pytest", str(example / "tests"), *session.posargs)


@nox.session(name="same-answers", venv_backend="none")
def same_answers(session: nox.Session) -> None:
    """Run one recording with the same weights on every backend, then compare the answers."""
    answers = Path(session.create_tmp()).resolve()
    module = ("-m", "multifold_bench.same_answers")
    for backend in FRAMEWORKS:
        run_in(session, backend, *module, "--backend", backend, "--out", str(answers))
    run_in(session, "numpy", *module, "--compare", str(answers))


@nox.session(venv_backend="none", tags=["nightly"])
def soak(session: nox.Session) -> None:
    """Hold random programs, and served requests, to a loop of its own on every backend: for minutes."""
    for backend in FRAMEWORKS:
        programs = "10000" if backend in ("numpy", "torch") else "1000"
        options = session.posargs or ("--programs", programs)
        # -P: the installed packages are tested, not the folder that nox runs in.
        run_in(session, backend, "-P", "-m", "pytest", "tests/soak.py", "--backend", backend, *options)
        if backend != "mxnet":  # plain programs of it are written for rows
            plain = session.posargs or ("--programs", "5000" if backend in ("numpy", "torch") else "1000")
            run_in(session, backend, "tests/imported/sweep_programs.py", "--backend", backend, *plain)
        ops = session.posargs or ("--programs", "200" if backend == "jax" else "2000")  # it compiles each
        random_ops = "tests/engine/ops/test_random_ops.py"
        run_in(session, backend, "-P", "-m", "pytest", random_ops, "--backend", backend, *ops)
        run_in(session, backend, "-P", "tests/imported/soak_serve.py", "--backend", backend)


@nox.session
def mutate(session: nox.Session) -> None:
    """Plant 600 small mistakes in the core, one at a time, and see a test fail (``-- --module run``)."""
    # Editable: tests run on the syntax trees of the files in `multifold`, each with a mistake in it.
    packages = ("-e", ".[arrow,cli,examples,serving,test]", "-e", "./benchmarks[plot]", "-e", "./compat")
    session.install(*packages, "coverage==7.*")
    session.run("python", "tools/mutation", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(tags=["nightly"])
def sanitize(session: nox.Session) -> None:
    """Run kernel tests and 100,000 damaged traces under address and undefined-behaviour sanitizers."""
    install(session, "arrow,cli,test", "-e", "./benchmarks", "setuptools", "cython")
    # The tests run on a copy: what is built for them fits no other Python.
    copy = Path(session.create_tmp(), "sanitized").resolve()
    shutil.rmtree(copy, ignore_errors=True)
    skipped = shutil.ignore_patterns("*.so", "build", ".git", ".nox", "__pycache__")
    shutil.copytree(Path(), copy, ignore=skipped)
    session.chdir(copy)
    sanitizers = "-fsanitize=address,undefined"
    options = f"{sanitizers} -fno-sanitize-recover=all -O1"
    flags = {"CFLAGS": options, "LDFLAGS": sanitizers}
    session.run("python", "setup.py", "-q", "build_ext", "--inplace", env=flags)
    libraries = [
        str(session.run("gcc", f"-print-file-name=lib{name}.so", external=True, silent=True)).strip()
        # The runtime of the sanitizers comes first. It wraps what C++ throws, so it must find libstdc++.
        for name in ("asan", "stdc++")
    ]
    watched = {
        "LD_PRELOAD": " ".join(libraries),
        # Python keeps some memory to its end, and NumPy raises MemoryError where there is none.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",  # Python's own allocator hides small objects from the sanitizer
        "PYTHONPATH": f"{copy}:{copy / 'benchmarks'}",
        "MULTIFOLD_DAMAGED_TRACES": "100000",
    }
    options = ("-q", "--backend", "numpy", "tests/engine/compiled")
    session.run("python", "-m", "pytest", *options, *session.posargs, env=watched)


@nox.session(venv_backend="none")
def compare(session: nox.Session) -> None:
    """Run ``multifold compare`` with every backend (options behind ``--``); print one table."""
    results = Path(session.create_tmp()).resolve()
    files = {backend: str(results / f"{backend}.json") for backend in FRAMEWORKS}
    command = ("-m", "multifold", "compare")
    for backend, file in files.items():
        run_in(session, backend, *command, "--backend", backend, "--json", file, *session.posargs)
    run_in(session, "numpy", *command, "--merge", *files.values())


@nox.session(venv_backend="none")
def experiments(session: nox.Session) -> None:
    """Run ``multifold bench experiments`` with every backend (options behind ``--``); one report.

    Rows are kept in ``experiments.jsonl`` and the page in ``experiments/``: run it again to go on.
    """
    rows = str(Path("experiments.jsonl").resolve())
    command = ("-m", "multifold", "bench", "experiments")
    for backend in FRAMEWORKS:
        run_in(session, backend, *command, "--backend", backend, "--json", rows, *session.posargs)
    run_in(session, "numpy", *command, rows, "--merge", "--report", "experiments")


def run_in(session: nox.Session, backend: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Run Python in the environment of a backend, which its ``tests`` session makes."""
    nox_again = ("-m", "nox", "--install-only", "--session", f"tests({backend})")
    session.run(sys.executable, *nox_again, external=True, silent=True)
    python = python_of(Path(".nox", f"tests-{backend}"))
    session.run(str(python), *arguments, external=True, env={"OMP_NUM_THREADS": "1", **(env or {})})


# ---- environments --------------------------------------------------------------------------------


def install(session: nox.Session, extras: str, *packages: str) -> None:
    """Install the core with some extras, and other packages, unless all is there as it is now.

    The core comes as a wheel, as users get it, so that the tests fail if a file was left out; other folders
    of the repository follow ``-e``. A note in the environment says what it holds, since pip takes seconds
    to find that nothing is to be done. Delete an environment to have newer versions of what has no number.
    """
    wheel = core(session)
    folders = [Path(name.partition("[")[0]) for name in packages if name.startswith("./")]
    asked = digest([extras, *packages], [folder / "pyproject.toml" for folder in (Path(), *folders)])
    wanted = [wheel.parent.name, asked]
    note = Path(session.virtualenv.location, "multifold.txt").absolute()
    held = note.read_text().split() if note.exists() else ["", ""]
    if held[0] != wanted[0]:
        session.install("--force-reinstall", "--no-deps", str(wheel))
    if held[1] != wanted[1]:
        session.install(f"{wheel}[{extras}]", *packages)
    if held != wanted:
        code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:]))"
        if session.run_install("python", "-c", code, str(note), *wanted, silent=True) is None:
            session.error("What is installed is not what is in this folder. Run it without --no-install")


def core(session: nox.Session) -> Path:
    """Return the wheel of the core for the Python of a session; build it if the sources have changed.

    What a compiler made is kept apart from the rest, by its own sources, so that a change of Python code is
    packed in seconds. Delete `.nox/core` after a compiler was installed.
    """
    kept = Path(".nox", "core", session.python or f"{sys.version_info.major}.{sys.version_info.minor}")
    build = [Path(name) for name in ("MANIFEST.in", "README.md", "pyproject.toml", "setup.py")]
    package = [x for x in Path("multifold").rglob("*") if x.is_file() and x.suffix not in MADE]
    folder = kept / f"wheel-{digest([], [*build, *package])}"
    if not any(folder.glob("*.whl")):
        for other in kept.glob("wheel-*"):
            shutil.rmtree(other)
        builder = kept / "builder"
        if not builder.exists():
            session.run_install("python", "-m", "venv", str(builder))
        python = str(python_of(builder))
        needs = tomllib.loads(Path("pyproject.toml").read_text())["build-system"]["requires"]
        session.run_install(python, "-m", "pip", "install", "--quiet", *needs, external=True)
        sources = (x for x in package if x.suffix == ".pyx" or x.with_suffix(".pxd").exists())
        compiled = [Path("setup.py"), *sources]
        base = kept / f"compiled-{digest(needs, compiled)}"
        for old in [x for x in base.glob("lib*/**/*") if x.is_file() and x.suffix not in (".so", ".pyd")]:
            old.unlink()  # a file that was deleted since would be packed
        command = ("build", "--build-base", str(base), "bdist_wheel", "--dist-dir", str(folder))
        session.run_install(python, "setup.py", "-q", *command, external=True, silent=True)
    return next(folder.glob("*.whl"), folder / "missing")


MADE = (".so", ".pyd", ".pyc", ".c")
"""Endings of files in the package that are made from others."""


def digest(texts: Iterable[str], files: Iterable[Path]) -> str:
    """Return sixteen characters that differ where texts, the names of files or their contents do."""
    found = hashlib.sha256(repr(list(texts)).encode())
    for file in sorted(files):
        content = file.read_bytes()
        found.update(f"{file.as_posix()} {len(content)} ".encode() + content)
    return found.hexdigest()[:16]


def python_of(environment: Path) -> Path:
    """Return the interpreter of an environment."""
    place = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
    return environment.joinpath(*place).absolute()
