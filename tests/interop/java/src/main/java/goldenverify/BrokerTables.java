package goldenverify;

import java.io.PrintStream;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.ConsumerOffsetSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;

/**
 * Loads and prints consumer offsets and topics of a broker's folder `config`. With "change" it also
 * changes and persists them: each offset grows by 1000, and a topic is added.
 *
 * Files are handled by RocketMQ's ConfigManager, text by the serializers of its broker's two managers.
 */
public final class BrokerTables {
    private BrokerTables() {
    }

    public static void main(String[] args) throws Exception {
        Offsets offsets = new Offsets(args[0]);
        Topics topics = new Topics(args[0]);
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("loaded", offsets.load() && topics.load());
        Map<String, Object> offsetRows = new TreeMap<>();
        for (Map.Entry<String, ConcurrentMap<Integer, Long>> row : offsets.table.getOffsetTable().entrySet()) {
            Map<String, Object> queues = new TreeMap<>();
            row.getValue().forEach((queue, offset) -> queues.put(String.valueOf(queue), offset));
            offsetRows.put(row.getKey(), queues);
        }
        said.put("offsets", offsetRows);
        Map<String, Object> topicRows = new TreeMap<>();
        for (TopicConfig topic : topics.table.getTopicConfigTable().values()) {
            topicRows.put(topic.getTopicName(), topic.toString());
        }
        said.put("topics", topicRows);
        said.put("versions", Arrays.asList(counter(offsets.table.getDataVersion()),
            counter(topics.table.getDataVersion())));
        try (PrintStream out = new PrintStream(args[1], "UTF-8")) {
            out.println(Json.write(said));
        }
        if (args.length > 2 && args[2].equals("change")) {
            offsets.table.getOffsetTable().values().forEach(row -> row.replaceAll((queue, offset) -> offset + 1000));
            offsets.table.getDataVersion().nextVersion();
            offsets.persist();
            topics.table.getTopicConfigTable().put("FromJava", new TopicConfig("FromJava", 2, 3, 6));
            topics.table.getDataVersion().nextVersion();
            topics.persist();
        }
    }

    private static long counter(DataVersion version) {
        return version.getCounter().get();
    }

    private static final class Offsets extends ConfigManager {
        private final String folder;
        private ConsumerOffsetSerializeWrapper table = new ConsumerOffsetSerializeWrapper();

        Offsets(String folder) {
            this.folder = folder;
        }

        @Override
        public String configFilePath() {
            return folder + "/consumerOffset.json";
        }

        @Override
        public String encode() {
            return encode(false);
        }

        @Override
        public String encode(boolean pretty) {
            return table.toJson(pretty);
        }

        @Override
        public void decode(String text) {
            table = RemotingSerializable.fromJson(text, ConsumerOffsetSerializeWrapper.class);
        }
    }

    private static final class Topics extends ConfigManager {
        private final String folder;
        private TopicConfigSerializeWrapper table = new TopicConfigSerializeWrapper();

        Topics(String folder) {
            this.folder = folder;
        }

        @Override
        public String configFilePath() {
            return folder + "/topics.json";
        }

        @Override
        public String encode() {
            return encode(false);
        }

        @Override
        public String encode(boolean pretty) {
            return table.toJson(pretty);
        }

        @Override
        public void decode(String text) {
            table = RemotingSerializable.fromJson(text, TopicConfigSerializeWrapper.class);
        }
    }
}
