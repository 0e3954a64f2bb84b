"""RocketMQ's byte formats as pure functions: no files, no clocks, no state.

One module for each format, with a table of its bytes:

    java           string hash, index key hashes and slots, division, UTF-8, as in Java
    checks         bounds checks and checksums that all of these share
    fastjson       the JSON of RocketMQ's own files
    names          segments, directories, files, and message ids
    record         single fields and the property string of a stored record
    message        one whole stored record, and what may follow the last one of a segment
    columns        many records at once
    key_hashes     the hashes of many keys
    queue_unit     units of consume queues
    local_index    the key index of the local store
    tiered_index   the key index of the tier, as it is written and as it is uploaded

Decoders take bytes, bytearray or a memoryview of bytes, check lengths before they slice, and raise
SegmentCorruptError for damaged bytes. Encoders raise ValueError for values that do not fit.
"""
