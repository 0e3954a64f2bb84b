import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
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
 * number, queue, offset, SHA-256 of the body and the property "padding", tags, keys, the property
 * "shape", message id.
 */
public class Client {
    private static final PrintStream OUT =
        new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true,
            StandardCharsets.UTF_8);
    private static final int SECONDS = 120;
    private static final ScheduledExecutorService LATER = Executors.newScheduledThreadPool(1);
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
            case "create": create(args[2], Integer.parseInt(args[3])); break;
            case "produce": produce(args[2], Integer.parseInt(args[3])); break;
            case "send": send(args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4])); break;
            case "push": push(args[2], args[3], Integer.parseInt(args[4]), args[5],
                args.length > 6 ? args[6] : "", false); break;
            case "orderly": push(args[2], args[3], Integer.parseInt(args[4]), "*", "", true); break;
            case "key": key(args[2], args[3]); break;
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

    private static void create(String topic, int queues) throws Exception {
        DefaultMQProducer producer = producer();
        producer.createTopic("TBW102", topic, queues, Map.of());
        producer.shutdown();
    }

    /** Some of them are delayed. */
    private static Message messageOfStory(String topic, int number) {
        if (!isDelayed(number)) {
            return message(topic, number);
        }
        Message message = new Message(topic, ("order " + number).getBytes());
        message.setTags(number % 2 == 0 ? "even" : "odd");
        message.setKeys("key-" + number);
        message.putUserProperty("number", Integer.toString(number));
        message.putUserProperty("shape", "delayed");
        message.setDelayTimeLevel(1);
        return message;
    }

    private static boolean isDelayed(int number) {
        return number % 97 == 13;
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

    /** Sends each until it is acknowledged, and prints its line: alone, in batches, in parallel. */
    private static void send(String topic, int first, int count) throws Exception {
        DefaultMQProducer producer = producer();
        int number = first;
        int last = first + count;
        for (; number < first + count / 3; number++) {
            OUT.println(told(sendOne(producer, topic, number)));
        }
        for (; number + 5 <= first + count * 2 / 3; number += 5) {
            List<Message> batch = new ArrayList<>();
            for (int each = number; each < number + 5; each++) {
                if (isDelayed(each)) { // no batch may have one
                    OUT.println(told(sendOne(producer, topic, each)));
                } else {
                    batch.add(message(topic, each));
                }
            }
            SendResult result = until(() -> producer.send(batch));
            String[] ids = result.getMsgId().split(",");
            for (int each = 0; each < batch.size(); each++) {
                OUT.println(line(batch.get(each), result.getMessageQueue().getQueueId(),
                    result.getQueueOffset() + each, ids[each]));
            }
        }
        CountDownLatch left = new CountDownLatch(last - number);
        Semaphore room = new Semaphore(200);
        for (; number < last; number++) {
            room.acquire();
            sendLater(producer, topic, number, room, left);
        }
        if (!left.await(SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " are not acknowledged");
        }
        producer.shutdown();
    }

    private static Map.Entry<Message, SendResult> sendOne(DefaultMQProducer producer, String topic,
        int number) throws Exception {
        Message message = messageOfStory(topic, number);
        return Map.entry(message, until(() -> producer.send(message)));
    }

    private static void sendLater(DefaultMQProducer producer, String topic, int number,
        Semaphore room, CountDownLatch left) throws Exception {
        Message message = messageOfStory(topic, number);
        producer.send(message, new SendCallback() {
            @Override public void onSuccess(SendResult result) {
                OUT.println(told(Map.entry(message, result)));
                room.release();
                left.countDown();
            }
            @Override public void onException(Throwable error) {
                LATER.schedule(() -> {
                    sendLater(producer, topic, number, room, left);
                    return null;
                }, 200, TimeUnit.MILLISECONDS);
            }
        });
    }

    /** For a delayed one the broker names the place where it waits. */
    private static String told(Map.Entry<Message, SendResult> sent) {
        Message message = sent.getKey();
        String[] fields = line(message, sent.getValue()).split("\t");
        if (message.getDelayTimeLevel() > 0) {
            fields[1] = fields[2] = "?";
        }
        return String.join("\t", fields);
    }

    private static SendResult until(Callable<SendResult> call) throws Exception {
        long until = System.currentTimeMillis() + SECONDS * 1_000;
        while (true) {
            try {
                return call.call();
            } catch (Exception error) {
                if (System.currentTimeMillis() > until) {
                    throw error;
                }
                Thread.sleep(100);
            }
        }
    }

    /** A new group begins at `since`, if given: a second as yyyyMMddHHmmss. */
    private static void push(String topic, String group, int count, String tags, String since,
        boolean orderly) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(address);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (!since.isEmpty()) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
            consumer.setConsumeTimestamp(since);
        }
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
        left.await(SECONDS, TimeUnit.SECONDS);
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

    /** Fails the first delivery of each message, and prints how often each came. */
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

    /** Looks up by key, id and time, and the ends of queues, with the client's own calls. */
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

    private static void key(String topic, String key) throws Exception {
        DefaultMQProducer producer = producer();
        long now = System.currentTimeMillis();
        for (MessageExt message : producer.queryMessage(topic, key, 32, 0, now + 1).getMessageList()) {
            OUT.println(line(message));
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
            Long.toString(offset), digest(message), String.valueOf(message.getTags()),
            message.getKeys(), message.getUserProperty("shape"), id);
    }

    private static String digest(Message message) {
        String padding = message.getUserProperty("padding");
        byte[] body = message.getBody();
        byte[] more = padding == null ? new byte[0] : padding.getBytes();
        byte[] all = Arrays.copyOf(body, body.length + more.length);
        System.arraycopy(more, 0, all, body.length, more.length);
        return sha(all);
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
