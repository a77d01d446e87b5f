"""Which adapter serves this machine."""

from ebbtide.snapshot.driver.cuda import CudaDriver
from ebbtide.snapshot.driver.cuda_library import CudaLibrary, NoCuda
from ebbtide.snapshot.driver.none import NoDriver


def find_driver() -> CudaDriver | NoDriver:
    """The CUDA driver, started; where there is none, the adapter that says why."""
    try:
        return CudaDriver(CudaLibrary())
    except NoCuda as error:
        return NoDriver(str(error))
