import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.common.*;

/** Adds to every group read from standard input, one JSON object a line, the plans that Kafka's own assignors make. */
@SuppressWarnings({"deprecation", "removal"})
class KafkaPlans {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        for (Scanner lines = new Scanner(System.in); lines.hasNextLine(); ) {
            ObjectNode group = (ObjectNode) JSON.readTree(lines.nextLine());
            ObjectNode plans = group.putObject("plans");
            plans.set("range", plan(new RangeAssignor(), group, false));
            plans.set("roundrobin", plan(new RoundRobinAssignor(), group, false));
            plans.set("sticky", plan(new StickyAssignor(), group, true));
            plans.set("cooperative-sticky", plan(new CooperativeStickyAssignor(), group, false));
            for (JsonNode member : group.get("members"))
                ((ObjectNode) member).put("kafkas_user_data", HexFormat.of().formatHex(userData(member).array()));
            System.out.println(JSON.writeValueAsString(group));
        }
    }

    static JsonNode plan(ConsumerPartitionAssignor assignor, JsonNode group, boolean withUserData) {
        Map<String, Subscription> subscriptions = new LinkedHashMap<>();
        for (JsonNode member : group.get("members")) {
            Subscription subscription = new Subscription(
                topics(member), withUserData ? bytes(member.get("user_data")) : null, owned(member),
                member.get("generation").asInt(), Optional.ofNullable(member.path("rack").textValue()));
            if (!member.get("instance_id").isNull())
                subscription.setGroupInstanceId(Optional.of(member.get("instance_id").asText()));
            subscriptions.put(member.get("member_id").asText(), subscription);
        }
        ObjectNode plan = JSON.createObjectNode();
        assignor.assign(cluster(group), new GroupSubscription(subscriptions)).groupAssignment().forEach((id, given) -> {
            ArrayNode mine = plan.putArray(id);
            for (TopicPartition partition : given.partitions())
                mine.addArray().add(partition.topic()).add(partition.partition());
        });
        return plan;
    }

    static ByteBuffer bytes(JsonNode hex) {
        return ByteBuffer.wrap(HexFormat.of().parseHex(hex.asText()));
    }

    static ByteBuffer userData(JsonNode member) {
        StickyAssignor assignor = new StickyAssignor();
        int generation = member.get("generation").asInt();
        assignor.onAssignment(new Assignment(owned(member)), new ConsumerGroupMetadata("g", generation, "", Optional.empty()));
        return assignor.subscriptionUserData(Set.of());
    }

    static Cluster cluster(JsonNode group) {
        List<PartitionInfo> partitions = new ArrayList<>();
        List<Node> nodes = new ArrayList<>();
        group.get("partitions").fields().forEachRemaining(topic -> {
            for (int number = 0; number < topic.getValue().asInt(); number++) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : group.path("replica_racks").path(topic.getKey()).path(number))
                    replicas.add(new Node(nodes.size() + replicas.size(), "host", 9092, rack.textValue()));
                nodes.addAll(replicas);
                partitions.add(new PartitionInfo(topic.getKey(), number, null, replicas.toArray(new Node[0]), new Node[0]));
            }
        });
        return new Cluster("cluster", nodes, partitions, Set.of(), Set.of());
    }

    static List<String> topics(JsonNode member) {
        List<String> topics = new ArrayList<>();
        member.get("topics").forEach(topic -> topics.add(topic.asText()));
        return topics;
    }

    static List<TopicPartition> owned(JsonNode member) {
        List<TopicPartition> owned = new ArrayList<>();
        member.get("owned").forEach(pair -> owned.add(new TopicPartition(pair.get(0).asText(), pair.get(1).asInt())));
        return owned;
    }
}
