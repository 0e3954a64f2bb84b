package goldenverify;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Prints the verdicts of RocketMQ's filter on SQL92 expressions, one JSON object a line:
 * {"sql": …, "properties": [{…}, …]} becomes {"valid": …, "taken": [true, false, …]}.
 *
 * It evaluates an expression as ExpressionMessageFilter.isMatchedByCommitLog does.
 */
public final class SqlFilterSays {
    private SqlFilterSays() {
    }

    public static void main(String[] args) throws Exception {
        try (PrintStream out = new PrintStream(args[1], "UTF-8")) {
            for (String line : Files.readAllLines(Paths.get(args[0]), StandardCharsets.UTF_8)) {
                out.println(Json.write(answer(JSON.parseObject(line))));
            }
        }
    }

    private static Map<String, Object> answer(JSONObject question) {
        Map<String, Object> answer = new LinkedHashMap<>();
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(question.getString("sql"));
        } catch (Throwable refused) {
            answer.put("valid", false);
            return answer;
        }
        answer.put("valid", true);
        List<Object> taken = new ArrayList<>();
        JSONArray messages = question.getJSONArray("properties");
        for (int i = 0; i < messages.size(); i++) {
            taken.add(matches(expression, messages.getJSONObject(i)));
        }
        answer.put("taken", taken);
        return answer;
    }

    private static boolean matches(Expression expression, JSONObject properties) {
        try {
            Object result = expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.getString(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return properties;
                }
            });
            return result instanceof Boolean && (Boolean) result;
        } catch (Throwable incomparable) {
            return false;
        }
    }
}
