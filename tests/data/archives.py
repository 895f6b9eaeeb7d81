"""Archives and folders with the files of a data set."""

import io
import tarfile
import zipfile


def write_tar(path, top: str, files: dict[str, bytes]) -> None:
    """Write files below the folder `top` of a compressed tar archive."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_zip(path, top: str, files: dict[str, bytes]) -> None:
    """Write files below the folder `top` of a zip archive."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"{top}/{name}", data)


def write_folder(folder, files: dict[str, bytes]) -> None:
    """Write files below a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
