package edgespec;

import java.util.List;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** The JSON of POST /tokenize, written and read with Android's org.json. */
final class Json {
    private Json() {}

    /** Writes the body of a request to POST /tokenize. */
    static String tokenizeRequest(List<Message> messages) {
        try {
            JSONArray all = new JSONArray();
            for (Message message : messages) {
                all.put(new JSONObject().put("role", message.role).put("content", message.content));
            }
            return new JSONObject().put("messages", all).put("add_generation_prompt", true).toString();
        } catch (JSONException error) {
            throw new AssertionError("strings can always be written: " + error);
        }
    }

    /** Reads the token ids from the answer of /tokenize. */
    static int[] tokens(String body) throws ProtocolException {
        try {
            JSONArray tokens = new JSONObject(body).getJSONArray("tokens");
            int[] ids = new int[tokens.length()];
            for (int i = 0; i < ids.length; i++) {
                Object id = tokens.get(i); // getInt would also take "1" and 1.5
                if (!(id instanceof Integer) || (Integer) id < 0) {
                    throw new JSONException("it has " + id + " for a token id");
                }
                ids[i] = (Integer) id;
            }
            return ids;
        } catch (JSONException error) {
            throw new ProtocolException("the server's answer to /tokenize is wrong: " + error.getMessage());
        }
    }

    /** Reads the message from the body of an error; "" if there is none. */
    static String errorMessage(String body) {
        try {
            return new JSONObject(body).getJSONObject("error").getString("message");
        } catch (JSONException error) {
            return "";
        }
    }
}
