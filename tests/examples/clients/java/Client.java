import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Apache's client, as a program: it prints a line of tab-separated fields for each message.
 *
 * number, queue, offset, SHA-256 of the body, tags, keys, the property "shape", message id.
 */
public class Client {
    private static final PrintStream OUT =
        new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true,
            StandardCharsets.UTF_8);
    private static String address;

    public static void main(String[] args) {
        address = args[1];
        int code = 1;
        try {
            run(args);
            code = 0;
        } catch (Exception error) {
            error.printStackTrace();
        }
        System.exit(code); // threads of the client would go on
    }

    private static void run(String[] args) throws Exception {
        switch (args[0]) {
            case "produce": produce(args[2], Integer.parseInt(args[3])); break;
            case "push": push(args[2], args[3], Integer.parseInt(args[4]), args[5], false); break;
            case "orderly": push(args[2], args[3], Integer.parseInt(args[4]), "*", true); break;
            case "retry": retry(args[2], args[3]); break;
            case "lite": lite(args[2], args[3], Integer.parseInt(args[4])); break;
            case "look": look(args[2], args[3], args[4]); break;
            default: throw new IllegalArgumentException(args[0]);
        }
    }

    private static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java_producers");
        producer.setNamesrvAddr(address);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        return producer;
    }

    private static Message message(String topic, int number) {
        String[] shapes = {"plain", "large", "random", "unicode", "keys", "untagged", "long", "tiny"};
        String shape = shapes[number % shapes.length];
        byte[] body;
        Random random = new Random(number);
        switch (shape) {
            case "large": body = ("body " + number + " ").repeat(9_000).getBytes(); break;
            case "random": body = new byte[20_000]; random.nextBytes(body); break;
            case "unicode": body = ("заказ № " + number + " 订单 ✓ 𝄞").getBytes(StandardCharsets.UTF_8); break;
            case "tiny": body = new byte[] {(byte) number}; break;
            default: body = ("order " + number).getBytes();
        }
        Message message = new Message(topic, body);
        if (!shape.equals("untagged")) {
            message.setTags(number % 2 == 0 ? "even" : "odd");
        }
        message.setKeys("key-" + number + (shape.equals("keys") ? " other-" + number : ""));
        message.putUserProperty("number", Integer.toString(number));
        message.putUserProperty("shape", shape.equals("unicode") ? "юникод 𝄞" : shape);
        if (shape.equals("long")) {
            message.putUserProperty("padding", "x".repeat(9_000));
        }
        message.setFlag(number);
        return message;
    }

    private static void produce(String topic, int count) throws Exception {
        DefaultMQProducer producer = producer();
        List<String> lines = java.util.Collections.synchronizedList(new ArrayList<>());
        int number = 0;
        for (; number < count / 4; number++) {
            Message message = message(topic, number);
            lines.add(line(message, producer.send(message)));
        }
        for (; number < count / 2; number += 5) {
            List<Message> batch = new ArrayList<>();
            for (int each = number; each < number + 5; each++) {
                batch.add(message(topic, each));
            }
            SendResult result = producer.send(batch);
            String[] ids = result.getMsgId().split(",");
            for (int each = 0; each < 5; each++) {
                lines.add(line(batch.get(each), result.getMessageQueue().getQueueId(),
                    result.getQueueOffset() + each, ids[each]));
            }
        }
        CountDownLatch left = new CountDownLatch(count - number);
        for (; number < count; number++) {
            Message message = message(topic, number);
            producer.send(message, new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    lines.add(line(message, result));
                    left.countDown();
                }
                @Override public void onException(Throwable error) {
                    error.printStackTrace();
                    left.countDown();
                }
            });
        }
        left.await(60, TimeUnit.SECONDS);
        lines.forEach(OUT::println);
        producer.shutdown();
    }

    private static void push(String topic, String group, int count, String tags, boolean orderly)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(address);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, tags);
        Map<String, String> found = new ConcurrentHashMap<>();
        CountDownLatch left = new CountDownLatch(count);
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                take(messages, found, left);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                take(messages, found, left);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        left.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        new TreeMap<>(found).values().forEach(OUT::println);
    }

    private static void take(Collection<MessageExt> messages, Map<String, String> found,
        CountDownLatch left) {
        for (MessageExt message : messages) {
            String place = String.format("%04d/%012d", message.getQueueId(), message.getQueueOffset());
            if (found.put(place, line(message)) == null) {
                left.countDown();
            }
        }
    }

    /** The first delivery of a message fails; it prints how often each came. */
    private static void retry(String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(address);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        CountDownLatch left = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                OUT.println(message.getReconsumeTimes() + "\t" + message.getTopic() + "\t" + sha(message.getBody()));
                if (message.getReconsumeTimes() == 0) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        left.await(40, TimeUnit.SECONDS);
        consumer.shutdown();
    }

    private static void lite(String topic, String group, int count) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(address);
        consumer.setAutoCommit(false);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            consumer.seekToBegin(queue);
        }
        Map<String, String> found = new TreeMap<>();
        CountDownLatch left = new CountDownLatch(count);
        long until = System.currentTimeMillis() + 60_000;
        while (left.getCount() > 0 && System.currentTimeMillis() < until) {
            take(consumer.poll(1_000), found, left);
        }
        consumer.shutdown();
        found.values().forEach(OUT::println);
    }

    /** By key, by id, by time and the ends of queues, as a client's own calls have them. */
    private static void look(String topic, String key, String id) throws Exception {
        DefaultMQProducer producer = producer();
        long now = System.currentTimeMillis();
        for (MessageExt message : producer.queryMessage(topic, key, 32, 0, now + 1).getMessageList()) {
            OUT.println("key\t" + line(message));
        }
        OUT.println("id\t" + line(producer.viewMessage(topic, id)));
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            long earliest = producer.earliestMsgStoreTime(queue);
            OUT.println("queue\t" + queue.getQueueId() + "\t" + producer.minOffset(queue) + "\t"
                + producer.maxOffset(queue) + "\t" + producer.searchOffset(queue, earliest) + "\t"
                + producer.searchOffset(queue, now + 1));
        }
        producer.shutdown();
    }

    private static String line(Message sent, SendResult result) {
        return line(sent, result.getMessageQueue().getQueueId(), result.getQueueOffset(),
            result.getMsgId());
    }

    private static String line(MessageExt found) {
        return line(found, found.getQueueId(), found.getQueueOffset(), found.getMsgId());
    }

    private static String line(Message message, int queue, long offset, String id) {
        return String.join("\t", message.getUserProperty("number"), Integer.toString(queue),
            Long.toString(offset), sha(message.getBody()), String.valueOf(message.getTags()),
            message.getKeys(), message.getUserProperty("shape"), id);
    }

    private static String sha(byte[] body) {
        try {
            StringBuilder text = new StringBuilder();
            for (byte each : MessageDigest.getInstance("SHA-256").digest(body)) {
                text.append(String.format("%02x", each));
            }
            return text.toString();
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }
}
