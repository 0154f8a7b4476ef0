"""Makes kudulite_spark/java/front.jar of its sources: `python tests/support/front_build.py`.

It needs a javac and the jars of an installed PySpark. Warnings are errors: raw types, unchecked and
redundant casts, deprecated methods. The jar records which sources and options it is of, and a test
compares that, so that neither can change alone, also on machines without a javac.
"""

import hashlib
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pyspark

FOLDER = Path(__file__).parents[2] / "kudulite_spark" / "java"
JAR = FOLDER / "front.jar"
MANIFEST = "META-INF/MANIFEST.MF"
# Not of interest are the jars of Spark (path, classfile), and numbers of versions of classes that
# are sent (serial): the driver and its executors have the same jar.
OPTIONS = (
    "--release",
    "17",
    "-Xlint:all,-path,-classfile,-serial",
    "-Werror",
    "-g:source,lines",
)
_TIME = (1980, 1, 1, 0, 0, 0)  # so that equal classes make an equal jar


def sources() -> list[Path]:
    """All sources of the jar."""
    return sorted(FOLDER.glob("*.java"))


def manifest() -> str:
    """The manifest of a jar of the sources as they are now."""
    contents = [" ".join(OPTIONS).encode(), *(path.read_bytes() for path in sources())]
    digest = hashlib.sha256(b"".join(contents)).hexdigest()
    # 72 bytes to a line is the format's limit.
    return f"Manifest-Version: 1.0\r\nSource-A: {digest[:32]}\r\nSource-B: {digest[32:]}\r\n\r\n"


def build() -> None:
    """Compile and pack."""
    jars = Path(pyspark.__file__).parent / "jars"
    with tempfile.TemporaryDirectory() as folder:
        classpath = ["-cp", f"{jars}/*", "-d", folder]
        subprocess.run(["javac", *OPTIONS, *classpath, *map(str, sources())], check=True)
        with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            jar.writestr(zipfile.ZipInfo(MANIFEST, _TIME), manifest())
            for path in sorted(Path(folder).rglob("*.class")):
                name = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _TIME)
                name.compress_type = zipfile.ZIP_DEFLATED
                jar.writestr(name, path.read_bytes())


if __name__ == "__main__":
    build()
