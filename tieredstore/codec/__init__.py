"""The bytes of RocketMQ as pure functions: no files, no clocks, no state.

What lives here: one module per format, each with the table of its bytes.

    java           string hash, index key hashes and slots, division, UTF-8, as Java does them
    names          segment, directory and file names
    properties     the property string, keys and tags code
    checksum       the body CRC and the CRC kept as a property
    record_fields  single fields of a stored record, read and patched in place
    message        whole stored records
    message_id     message ids made of a store host and a log offset
    end_marks      blank records and the end marker of old segments
    queue_unit     units of consume queues, one and many
    local_index    the key index of the local store
    tiered_index   the key index of the tier, as it is written and as it is uploaded
    tiered_index_columns  the same, many at once
    bounds         the checks that all of these share

Decoders take bytes, bytearray or a memoryview of bytes, look at lengths before they slice, and
raise SegmentCorruptError for damaged bytes. Encoders raise ValueError for what does not fit.
"""
