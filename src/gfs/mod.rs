//! GFS/1.0: how a result follows from a server seed, a client seed and a nonce.
