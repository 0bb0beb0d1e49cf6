// Candidates for the ends of chunks, keyed BLAKE3, SHA-1 and SHA-256 of many chunks at a time, and duplicates among names.
//
// `words` is always the buffer of a batch: bytes as 32-bit words in little-endian order. It begins with 32 bytes before the
// first chunk or tile and ends with 128 bytes after the last one, which the kernels may read and ignore. A batch has less
// than 1 GiB. Positions in it are bytes from the beginning of the buffer.
//
// Loops over the grid let a launch have any number of CTAs. Each result has one thread that writes it.
#include "dialect.h"

#include "blake3.h"
#include "gear.h"
#include "references.h"
#include "sha.h"
#include "stamp.h"
