//! Every seam in one process: a directory on disk, or memory.
