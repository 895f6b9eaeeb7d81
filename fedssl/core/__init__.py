"""The foundation of every other package: model state, files, devices, kernels, settings, errors and
the console."""
