"""Which adapter serves this machine."""

from pathlib import Path

from ebbtide.snapshot.driver.cuda.cuda_driver import CudaDriver
from ebbtide.snapshot.driver.cuda.cuda_library import KERNEL, CudaLibrary, NoCuda
from ebbtide.snapshot.driver.cuda.driver_defects import REMEDY, defect
from ebbtide.snapshot.driver.no_driver import NoDriver


def find_driver(kernel: Path = KERNEL) -> CudaDriver | NoDriver:
    """The CUDA driver, started; where there is none, or none that is safe, the adapter that says why.

    ``kernel``: where the kernel's part of the driver shows itself.
    """
    try:
        library = CudaLibrary(kernel)
    except NoCuda as error:
        return NoDriver(str(error))
    if why := defect(library.kernel_version()):
        return NoDriver(f"{why}; {REMEDY}")
    return CudaDriver(library)
