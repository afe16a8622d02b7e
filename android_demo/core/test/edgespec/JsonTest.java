package edgespec;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.util.Arrays;
import java.util.Random;
import org.junit.Test;

/** Tests the JSON that /tokenize needs. */
public class JsonTest {
    @Test
    public void documents() throws ProtocolException {
        assertEquals("{a=[1, -2.5, true, false, null, x], b={}, c=[]}",
                Json.parse(" {\"a\" : [1,-2.5 , true,false,null,\"x\"],\"b\":{},\"c\":[ ]} ").toString());
        assertEquals("q\"\\/\b\f\n\r\t\u00e9\ud83d\ude00",
                Json.parse("\"q\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\""));
    }

    @Test
    public void whatIsQuotedIsRead() throws ProtocolException {
        String text = "a\"b\\c\n\t\u0001\u00e9\ud83d\ude00/";
        assertEquals(text, Json.parse(Json.quote(text)));
    }

    @Test
    public void whatIsAsked() throws ProtocolException {
        String asked = Json.tokenizeRequest(Arrays.asList(new Message("user", "a\"b"), new Message("assistant", "")));
        assertEquals("{messages=[{role=user, content=a\"b}, {role=assistant, content=}], add_generation_prompt=true}",
                Json.parse(asked).toString());
    }

    @Test
    public void whatIsAnswered() throws ProtocolException {
        assertArrayEquals(new int[] {1, 0, 2147483647}, Json.tokens("{\"count\":3,\"tokens\":[1,0,2147483647]}"));
        for (String wrong : new String[] {"{}", "[]", "{\"tokens\":5}", "{\"tokens\":[-1]}", "{\"tokens\":[1.5]}",
            "{\"tokens\":[2147483648]}", "{\"tokens\":[1e999999999]}", "{\"tokens\":[\"1\"]}", "{\"tokens\":[null]}"}) {
            try {
                fail(wrong + " has no tokens, but " + Json.tokens(wrong).length);
            } catch (ProtocolException error) {
                assertTrue(error.getMessage(), error.getMessage().contains("/tokenize"));
            }
        }
        assertEquals("why", Json.errorMessage("{\"error\":{\"message\":\"why\"}}"));
        assertEquals("", Json.errorMessage("{\"error\":\"why\"}"));
        assertEquals("", Json.errorMessage("<html>"));
    }

    @Test
    public void whatIsNone() {
        String deep = new String(new char[100000]).replace('\0', '[');
        for (String wrong : new String[] {"", "{", "[1,", "[1 2]", "{\"a\"}", "{a:1}", "\"a", "\"\\u12\"", "\"\\uzzzz\"",
            "nul", "-", "1 2", "tru", "{\"a\":1,}", "[,]", deep}) {
            try {
                Json.parse(wrong);
                fail("this is no JSON: " + wrong);
            } catch (ProtocolException error) {
                assertTrue(error.getMessage().contains("no JSON"));
            }
        }
    }

    @Test
    public void randomDocuments() {
        Random random = new Random(5);
        String letters = "{}[]\",:\\u0123456789abtruefalsnl.-+eE \n";
        int read = 0;
        for (int i = 0; i < 20000; i++) {
            StringBuilder text = new StringBuilder();
            for (int n = random.nextInt(12); n >= 0; n--) {
                text.append(letters.charAt(random.nextInt(letters.length())));
            }
            try {
                Json.parse(text.toString());
                read++;
            } catch (ProtocolException error) {
                assertTrue(error.getMessage().contains("no JSON"));
            }
        }
        assertTrue(read > 100);
    }
}
