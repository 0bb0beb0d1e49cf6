//! Kernels for devices, whose sources are in `kernels/`. Tests call them on the processor.

#[cfg(test)]
#[expect(unsafe_code, reason = "kernels take addresses")]
mod host;
#[cfg(test)]
mod tests;
