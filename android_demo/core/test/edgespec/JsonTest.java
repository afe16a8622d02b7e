package edgespec;

import static org.junit.Assert.*;

import java.util.List;
import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.Test;

/** Tests the JSON that /tokenize needs. */
public class JsonTest {
    @Test
    public void requests() throws Exception {
        String text = "a\"b\\c\n\t\u0001\u00e9\ud83d\ude00/";
        JSONObject asked = new JSONObject(Json.tokenizeRequest(List.of(new Message("user", text))));
        assertTrue(asked.getBoolean("add_generation_prompt"));
        JSONArray messages = asked.getJSONArray("messages");
        assertEquals(1, messages.length());
        assertEquals("user", messages.getJSONObject(0).getString("role"));
        assertEquals(text, messages.getJSONObject(0).getString("content"));
    }

    @Test
    public void answers() throws ProtocolException {
        assertArrayEquals(new int[] {1, 0, 2147483647}, Json.tokens("{\"count\":3,\"tokens\":[1,0,2147483647]}"));
        for (String wrong : List.of("", "{", "{}", "[]", "{\"tokens\":5}", "{\"tokens\":[-1]}", "{\"tokens\":[1.5]}",
                "{\"tokens\":[2147483648]}", "{\"tokens\":[1e999999999]}", "{\"tokens\":[\"1\"]}", "{\"tokens\":[null]}")) {
            String said = assertThrows(wrong, ProtocolException.class, () -> Json.tokens(wrong)).getMessage();
            assertTrue(said, said.contains("/tokenize"));
        }
        assertEquals("why", Json.errorMessage("{\"error\":{\"message\":\"why\"}}"));
        assertEquals("", Json.errorMessage("{\"error\":\"why\"}"));
        assertEquals("", Json.errorMessage("<html>"));
    }
}
