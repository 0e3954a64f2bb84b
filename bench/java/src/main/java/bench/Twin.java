package bench;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadPoolExecutor;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.Configuration;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.plugin.MessageStorePluginContext;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tieredstore.MessageStoreConfig;
import org.apache.rocketmq.tieredstore.TieredMessageStore;
import org.apache.rocketmq.tieredstore.common.AppendResult;
import org.apache.rocketmq.tieredstore.common.GetMessageResultExt;
import org.apache.rocketmq.tieredstore.core.MessageStoreFetcherImpl;
import org.apache.rocketmq.tieredstore.file.FlatMessageFile;
import org.apache.rocketmq.tieredstore.index.IndexStoreFile;
import org.apache.rocketmq.tieredstore.provider.PosixFileSegment;

/**
 * Does the work of our benchmarks with RocketMQ's own classes, one command a line.
 *
 * A line is a command and its arguments, {@code name=value}, separated by tabs; the answer is a
 * line with seconds. The process stays alive between commands, so compiled code stays compiled.
 */
public final class Twin {

    private static final String TOPIC = "TopicTest";
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final String CLUSTER = "bench";
    private static final String BROKER = "broker-a";

    private final Map<String, TieredMessageStore> opened = new HashMap<>();
    private Map<String, String> given = Collections.emptyMap();

    public static void main(String[] argv) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // what libraries print is not an answer
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Twin twin = new Twin();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            twin.given = new HashMap<>();
            for (int i = 1; i < words.length; i++) {
                int at = words[i].indexOf('=');
                twin.given.put(words[i].substring(0, at), words[i].substring(at + 1));
            }
            String answer;
            try {
                answer = String.valueOf(twin.answer(words[0]));
            } catch (Throwable error) {
                error.printStackTrace();
                answer = "error " + error.toString().replace('\n', ' ');
            }
            out.println(answer);
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private double answer(String command) throws Exception {
        switch (command) {
            case "put":
                return put();
            case "pull":
                return pull();
            case "append":
                return append();
            case "fetch":
                return fetch();
            case "decode":
                return decode();
            case "index-put":
                return indexPut();
            case "index-query":
                return indexQuery();
            case "index-compact":
                return indexCompact();
            case "local-query":
                return localQuery();
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private String text(String name) {
        String value = given.get(name);
        if (value == null) {
            throw new IllegalArgumentException("no " + name);
        }
        return value;
    }

    private int number(String name) {
        return Integer.parseInt(text(name));
    }

    private static double since(long start) {
        return (System.nanoTime() - start) / 1e9;
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }

    private static void delete(File file) {
        File[] children = file.listFiles();
        if (children != null) {
            for (File child : children) {
                delete(child);
            }
        }
        file.delete();
    }

    // ------------------------------------------------------------------------------------ stores

    private static org.apache.rocketmq.store.config.MessageStoreConfig localConfig(String folder) {
        org.apache.rocketmq.store.config.MessageStoreConfig config =
            new org.apache.rocketmq.store.config.MessageStoreConfig();
        config.setStorePathRootDir(folder);
        config.setStorePathCommitLog(folder + "/commitlog");
        config.setHaListenPort(0);
        config.setEnableCompaction(false);
        return config;
    }

    private static BrokerConfig brokerConfig() {
        BrokerConfig config = new BrokerConfig();
        config.setBrokerName(BROKER);
        config.setBrokerClusterName(CLUSTER);
        return config;
    }

    private static DefaultMessageStore localStore(String folder) throws Exception {
        BrokerConfig broker = brokerConfig();
        return new DefaultMessageStore(localConfig(folder), new BrokerStatsManager(broker), null, broker,
            new ConcurrentHashMap<>());
    }

    /** A tier over a local store; {@code tier} has its segments, {@code store} its catalogue. */
    private static TieredMessageStore tieredStore(DefaultMessageStore local, String localFolder, String store,
        String tier) {
        Properties properties = new Properties();
        properties.setProperty("brokerName", BROKER);
        properties.setProperty("brokerClusterName", CLUSTER);
        properties.setProperty("storePathRootDir", store);
        properties.setProperty("tieredStoreFilePath", tier);
        properties.setProperty("tieredBackendServiceProvider", PosixFileSegment.class.getName());
        properties.setProperty("tieredStoreDeleteFileEnable", "false");
        properties.setProperty("tieredStorageLevel", "FORCE");
        Configuration configuration = new Configuration(null);
        configuration.registerConfig(properties);
        BrokerConfig broker = brokerConfig();
        TieredMessageStore found = new TieredMessageStore(new MessageStorePluginContext(localConfig(localFolder),
            new BrokerStatsManager(broker), null, broker, configuration), local);
        // One read at a time: PosixFileSegment moves a file position that its readers share.
        ThreadPoolExecutor pool = (ThreadPoolExecutor) found.getStoreExecutor().bufferFetchExecutor;
        pool.setCorePoolSize(1);
        pool.setMaximumPoolSize(1);
        return found;
    }

    private static void awaitDispatched(DefaultMessageStore store) throws Exception {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1L);
        }
    }

    // -------------------------------------------------------------------------------------- puts

    /** Seconds of puts into a new store in {@code folder}. */
    private double put() throws Exception {
        String folder = text("folder");
        DefaultMessageStore store = localStore(folder);
        check(store.load(), "load");
        store.start();
        int batch = number("batch");
        putMany(store, 0, batch * 8, batch);
        awaitDispatched(store);
        double spent = putMany(store, batch * 8, number("count"), batch);
        store.shutdown();
        delete(new File(folder));
        return spent;
    }

    /** Seconds of the puts; the messages are made beforehand. */
    private double putMany(DefaultMessageStore store, int first, int count, int batch) throws Exception {
        byte[] body = new byte[number("body")];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) i;
        }
        List<MessageExtBrokerInner> made = new ArrayList<>();
        for (int i = first; i < first + count; i += batch) {
            made.add(batch == 1 ? message(body, i) : batch(body, i, batch));
        }
        long start = System.nanoTime();
        for (MessageExtBrokerInner each : made) {
            check((batch == 1 ? store.putMessage(each) : store.putMessages((MessageExtBatch) each)).isOk(), "put");
        }
        return since(start);
    }

    private static MessageExtBrokerInner message(byte[] body, int number) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setBody(body);
        properties(message, number);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return sent(message, number & 3);
    }

    /** A batch as it comes from a producer, with its messages already encoded. */
    private static MessageExtBrokerInner batch(byte[] body, int first, int count) {
        List<Message> messages = new ArrayList<>(count);
        for (int number = first; number < first + count; number++) {
            Message message = new Message(TOPIC, body);
            properties(message, number);
            messages.add(message);
        }
        MessageExtBatch together = new MessageExtBatch();
        together.setBody(MessageDecoder.encodeMessages(messages));
        return sent(together, first / count & 3);
    }

    private static MessageExtBrokerInner sent(MessageExtBrokerInner message, int queue) {
        message.setTopic(TOPIC);
        message.setQueueId(queue);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        return message;
    }

    private static void properties(Message message, int number) {
        MessageAccessor.putProperty(message, "KEYS", "order-" + number + " user-" + number % 9973);
        MessageAccessor.putProperty(message, "TAGS", "TagA");
    }

    /** Seconds to pull {@code count} messages that were just put, {@code batch} a call. */
    private double pull() throws Exception {
        String folder = text("folder");
        DefaultMessageStore store = localStore(folder);
        check(store.load(), "load");
        store.start();
        int count = number("count");
        putMany(store, 0, count, 256);
        awaitDispatched(store);
        double spent = 0;
        for (int turn = 0; turn < 2; turn++) { // the second one counts
            long start = System.nanoTime();
            for (int queue = 0; queue < 4; queue++) {
                for (long at = 0; at < count / 4;) {
                    GetMessageResult found = store.getMessage("bench", TOPIC, queue, at, number("batch"), null);
                    check(found.getStatus() == GetMessageStatus.FOUND, "pull");
                    at = found.getNextBeginOffset();
                    found.release();
                }
            }
            spent = since(start);
        }
        store.shutdown();
        delete(new File(folder));
        return spent;
    }

    // -------------------------------------------------------------------------------------- tier

    /** Seconds to append and commit batches of records, which {@code file} has, to a new tier. */
    private double append() throws Exception {
        String folder = text("folder");
        TieredMessageStore store = tieredStore(localStore(folder), folder, folder + "/state", folder + "/tier");
        check(store.getDefaultStore().load() && store.getFlatFileStore().load(), "load");
        FlatMessageFile file = store.getFlatFileStore().computeIfAbsent(new MessageQueue(TOPIC, BROKER, 0));
        file.initOffset(0L);
        List<ByteBuffer> records = records(ByteBuffer.wrap(Files.readAllBytes(Paths.get(text("file")))));
        double spent = 0;
        long offset = 0;
        for (int turn = 0; turn <= number("batches"); turn++) { // the first one makes the files
            long now = System.currentTimeMillis();
            for (int i = 0; i < records.size(); i++) {
                records.get(i).clear();
                records.get(i).putLong(20, offset + i);
            }
            long start = System.nanoTime();
            for (ByteBuffer record : records) {
                int size = record.remaining();
                check(file.appendCommitLog(record) == AppendResult.SUCCESS, "append");
                DispatchRequest request = new DispatchRequest(TOPIC, 0, file.getCommitLogMaxOffset() - size, size,
                    0L, now, offset++, "", "", 0, 0L, null);
                check(file.appendConsumeQueue(request) == AppendResult.SUCCESS, "append a unit");
            }
            check(file.commitAsync().join(), "commit");
            spent += turn == 0 ? 0 : since(start);
        }
        store.getFlatFileStore().shutdown();
        delete(new File(folder));
        return spent;
    }

    /** Each record of a run, in its own buffer. */
    private static List<ByteBuffer> records(ByteBuffer all) {
        List<ByteBuffer> found = new ArrayList<>();
        while (all.hasRemaining()) {
            byte[] one = new byte[all.getInt(all.position())];
            all.get(one);
            found.add(ByteBuffer.wrap(one));
        }
        return found;
    }

    /** Seconds to read a queue of a tier that we wrote from its beginning to its end. */
    private double fetch() throws Exception {
        String tier = text("tier");
        TieredMessageStore store = opened.get(tier);
        if (store == null) {
            store = tieredStore(localStore(tier + "-local"), tier + "-local", text("store"), tier);
            check(store.getFlatFileStore().load(), "load");
            opened.put(tier, store);
        }
        int batch = number("batch");
        long count = number("count");
        boolean cached = number("cached") == 1;
        FlatMessageFile file = store.getFlatFileStore().getFlatFile(new MessageQueue(TOPIC, BROKER, 0));
        check(file != null && file.getConsumeQueueCommitOffset() == count, "the tier has other messages");
        MessageStoreFetcherImpl fetcher = new MessageStoreFetcherImpl(store);
        long start = System.nanoTime();
        for (long at = 0; at < count;) {
            if (cached) {
                GetMessageResult found = fetcher.getMessageAsync("bench", TOPIC, 0, at, batch, null).join();
                check(found.getStatus() == GetMessageStatus.FOUND, "pull");
                at = found.getNextBeginOffset();
            } else {
                GetMessageResultExt found = fetcher.getMessageFromTieredStoreAsync(file, at, batch).join();
                check(found.getStatus() == GetMessageStatus.FOUND, "fetch");
                at = found.getNextBeginOffset();
            }
        }
        double spent = since(start);
        fetcher.getFetcherCache().invalidateAll();
        return spent;
    }

    /** Seconds to decode all records of a file into messages. */
    private double decode() throws Exception {
        List<ByteBuffer> records = records(ByteBuffer.wrap(Files.readAllBytes(Paths.get(text("file")))));
        boolean checked = number("crc") == 1;
        double spent = 0;
        for (int turn = 0; turn < 2; turn++) { // the second one counts
            for (ByteBuffer record : records) {
                record.clear();
            }
            long start = System.nanoTime();
            for (ByteBuffer record : records) {
                check(MessageDecoder.decode(record, true, false, false, false, checked) != null, "decode");
            }
            spent = since(start);
        }
        return spent;
    }

    // ------------------------------------------------------------------------------------- index

    private MessageStoreConfig indexConfig() {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setBrokerName(BROKER);
        config.setBrokerClusterName(CLUSTER);
        config.setStorePathRootDir(text("store"));
        config.setTieredStoreFilePath(text("store") + "/tier");
        config.setTieredStoreIndexFileMaxHashSlotNum(number("slots"));
        config.setTieredStoreIndexFileMaxIndexNum(number("items"));
        return config;
    }

    private static String key(int number) {
        return String.format("order-%012d", number);
    }

    /** Seconds to put {@code count} keys into a new file. */
    private double indexPut() throws Exception {
        IndexStoreFile file = new IndexStoreFile(indexConfig(), System.currentTimeMillis());
        int count = number("count");
        List<Set<String>> keys = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            keys.add(Collections.singleton(key(i)));
        }
        long begin = System.currentTimeMillis();
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            check(file.putKey(TOPIC, 1, 3, keys.get(i), i * 400L, 400, begin + i / 20) == AppendResult.SUCCESS, "put");
        }
        double spent = since(start);
        file.destroy();
        delete(new File(text("store")));
        return spent;
    }

    /** Seconds to find so many keys, {@code step} apart, in a file that we wrote. */
    private double indexQuery() throws Exception {
        IndexStoreFile file = new IndexStoreFile(indexConfig(), Long.parseLong(text("begin")));
        int count = number("count");
        double spent = 0;
        for (int turn = 0; turn < 2; turn++) { // the second one counts: its pages are there
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                check(!file.queryAsync(TOPIC, key(i * number("step")), 32, 0L, Long.MAX_VALUE).join().isEmpty(),
                    "no key");
            }
            spent = since(start);
        }
        file.shutdown();
        return spent;
    }

    /** Seconds to compact a file that we wrote, in memory. */
    private double indexCompact() throws Exception {
        IndexStoreFile file = new IndexStoreFile(indexConfig(), Long.parseLong(text("begin")));
        long start = System.nanoTime();
        int size = file.doCompaction().remaining();
        double spent = since(start);
        check(size > 0, "nothing");
        file.shutdown();
        return spent;
    }

    /** Seconds to find so many keys in a file of the local store's index that we wrote. */
    private double localQuery() throws Exception {
        org.apache.rocketmq.store.index.IndexFile file = new org.apache.rocketmq.store.index.IndexFile(
            text("file"), number("slots"), number("items"), 0, 0);
        file.load();
        int count = number("count");
        double spent = 0;
        for (int turn = 0; turn < 2; turn++) { // the second one counts: its pages are there
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                List<Long> found = new ArrayList<>();
                file.selectPhyOffset(found, TOPIC + "#" + String.format("order-%08d", i), 32, 0L, Long.MAX_VALUE);
                check(!found.isEmpty(), "no key");
            }
            spent = since(start);
        }
        file.shutdown();
        return spent;
    }
}
