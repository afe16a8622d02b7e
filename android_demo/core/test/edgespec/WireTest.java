package edgespec;

import static org.junit.Assert.*;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;
import org.junit.Test;

/**
 * Tests that frames are byte for byte those of Python, by the vectors of the protocol. Tests the JSON of
 * /tokenize, too.
 */
public class WireTest {
    private static List<JSONObject> vectors() throws Exception {
        return Vectors.objects(Vectors.read("protocol_vectors.json"), "frames");
    }

    @Test
    public void framesOfTheDevice() throws Exception {
        List<String> types = new ArrayList<>();
        for (JSONObject vector : vectors()) {
            JSONObject fields = vector.getJSONObject("frame");
            byte[] encoded = encoded(fields);
            if (encoded.length > 0) {
                types.add(fields.getString("type"));
                assertEquals(vector.getString("name"), vector.getString("hex"), Server.hex(encoded));
            }
        }
        assertEquals(List.of("OPEN", "BEGIN", "BEGIN", "VERIFY", "VERIFY", "MORE", "CANCEL"), types);
    }

    /** Encodes a frame; returns no bytes for a frame of the server and for what this device never sends. */
    private static byte[] encoded(JSONObject f) throws JSONException {
        if (f.has("options") && f.getJSONObject("options").length() > 0
                || f.has("parents") && f.getJSONArray("parents").length() > 0
                || f.has("params") && f.getJSONObject("params").getJSONObject("logit_bias").length() > 0) {
            return new byte[0];
        }
        switch (f.getString("type")) {
            case "OPEN":
                return Wire.open(Vectors.bytes(f.getString("token")), f.getInt("vocab_size"),
                        Vectors.bytes(f.getString("vocab_hash")), f.getString("model"));
            case "BEGIN":
                return Wire.begin(f.getLong("generation"), f.getInt("keep"), (int) f.getLong("checksum"),
                        f.getInt("n_prompt"), f.getJSONObject("params").getDouble("temperature"),
                        f.getLong("seed"), Vectors.ints(f, "ids"));
            case "VERIFY":
                return Wire.verify(f.getLong("round"), f.getInt("length"), (int) f.getLong("checksum"),
                        f.getInt("ahead"), Vectors.ints(f, "ids"));
            case "MORE":
                return Wire.more(f.getLong("round"));
            case "CANCEL":
                return Wire.cancel();
            default:
                return new byte[0];
        }
    }

    @Test
    public void framesOfTheServer() throws Exception {
        List<String> types = new ArrayList<>();
        for (JSONObject vector : vectors()) {
            JSONObject fields = vector.getJSONObject("frame");
            JSONArray logprobs = fields.optJSONArray("logprobs");
            if ((vector.getString("hex").charAt(0) == '8') && (logprobs == null || logprobs.length() == 0)) {
                types.add(fields.getString("type"));
                compare(fields, Wire.decode(Vectors.bytes(vector.getString("hex"))));
            }
        }
        assertTrue(types.toString(),
                types.containsAll(List.of("OPENED", "PROGRESS", "ANSWER", "NEED", "BUSY", "ERROR")));
    }

    private static void compare(JSONObject f, Frame frame) throws JSONException {
        assertTrue(frame.toString(), frame.getClass().getName().toUpperCase().endsWith("$" + f.getString("type")));
        if (frame instanceof Frame.Opened opened) {
            assertEquals(f.getString("token"), Server.hex(opened.token));
            assertEquals(f.getInt("n_ctx"), opened.contextSize);
            assertEquals(f.getInt("max_draft"), opened.maxDraft);
            assertEquals(f.getInt("max_ahead"), opened.maxAhead);
            assertEquals(f.getInt("vocab_size"), opened.vocabularySize);
            assertEquals(f.getString("vocab_hash"), Server.hex(opened.vocabularyHash));
            assertEquals(f.getString("model"), opened.model);
            assertEquals(f.getJSONArray("costs").toString(), new JSONArray(opened.costs).toString());
        } else if (frame instanceof Frame.Progress progress) {
            assertEquals(f.getLong("generation"), progress.generation);
            assertEquals(f.getLong("n_done"), progress.nDone);
        } else if (frame instanceof Frame.Answer answer) {
            assertEquals(f.getLong("round"), answer.round);
            assertEquals(f.getInt("accepted"), answer.nAccepted);
            assertEquals(f.getInt("token"), answer.token);
            assertEquals(f.getLong("server_us"), answer.serverUs);
        } else if (frame instanceof Frame.Need need) {
            assertEquals(f.getLong("have"), need.have);
            assertEquals((int) f.getLong("checksum"), need.checksum);
        } else if (frame instanceof Frame.Busy busy) {
            assertEquals(f.getLong("retry_ms"), busy.retryMs);
            assertEquals(f.getString("message"), busy.message);
        } else {
            assertEquals(f.getInt("code"), ((Frame.Error) frame).code);
            assertEquals(f.getString("message"), ((Frame.Error) frame).message);
        }
    }

    @Test
    public void whatIsRefused() {
        refused("", "empty");
        refused("07", "unknown type 7");
        refused("82018000", "written too long");
        refused("82ffffffffffffffffffff", "ten bytes");
        refused("82ffffffffffffffffff7f", "too large");
        refused("8200", "ends 1 bytes before");
        refused("82000000", "1 bytes follow");
        refused("850001ff", "UTF-8");
        refused("830000" + "ffffffff0f" + "00", "too large");
        refused("8600" + "ffffffff07" + "61", "too large");
        refused("8101", "version 1 of the protocol came; this program speaks version 2");
        refused("8102" + "00".repeat(16) + "00000000" + "00".repeat(16) + "00" + "ffff03", "too short for the 65535");
    }

    private static void refused(String hex, String said) {
        String message = assertThrows(ProtocolException.class, () -> Wire.decode(Vectors.bytes(hex))).getMessage();
        assertTrue(message, message.contains(said));
    }

    @Test
    public void randomBytesAreFramesOrProtocolExceptions() throws Exception {
        Random random = new Random(20241121);
        List<JSONObject> whole = vectors();
        int frames = 0;
        for (int i = 0; i < 20000; i++) {
            byte[] data = Vectors.bytes(whole.get(random.nextInt(whole.size())).getString("hex"));
            data[random.nextInt(data.length)] = (byte) random.nextInt();
            data = Arrays.copyOf(data, data.length + random.nextInt(3) - 1);
            try {
                Wire.decode(data);
                frames++;
            } catch (ProtocolException error) {
                assertTrue(error.getMessage().length() > 10);
            }
            data = Arrays.copyOf(data, Math.max(1, data.length));
            data[0] = 1;
            try {
                new ServerVocabulary(data);
            } catch (ProtocolException error) {
                assertTrue(error.getMessage().length() > 10);
            }
        }
        assertTrue("some of them are frames, or the test says nothing: " + frames, frames > 500);
    }

    @Test
    public void checksums() throws Exception {
        for (JSONObject vector : Vectors.objects(Vectors.read("protocol_vectors.json"), "checksums")) {
            IntList context = new IntList(Vectors.ints(vector, "ids"));
            context.add(5);
            assertEquals((int) vector.getLong("crc32"), context.checksum(context.size() - 1));
        }
    }

    @Test
    public void vocabularies() throws Exception {
        for (JSONObject vector : Vectors.objects(Vectors.read("protocol_vectors.json"), "vocabularies")) {
            byte[] data = Vectors.bytes(vector.getString("hex"));
            ServerVocabulary found = new ServerVocabulary(data);
            JSONArray pieces = vector.getJSONArray("pieces");
            assertEquals(pieces.length(), found.size());
            assertEquals("101112131415161718191a1b1c1d1e1f", Server.hex(found.hash()));
            for (int id = 0; id < found.size(); id++) {
                boolean end = Arrays.binarySearch(Vectors.ints(vector, "ends"), id) >= 0;
                assertEquals(end, found.isEnd(id));
                assertEquals(end ? "" : pieces.get(id), new String(found.piece(id), StandardCharsets.UTF_8));
            }
            for (int length = 0; length < data.length; length++) {
                byte[] cut = Arrays.copyOf(data, length);
                assertThrows("cut to " + length, ProtocolException.class, () -> new ServerVocabulary(cut));
            }
        }
    }

    @Test
    public void requestsToTokenize() throws Exception {
        String text = "a\"b\\c\n\t\u0001\u00e9\ud83d\ude00/";
        JSONObject asked = new JSONObject(Json.tokenizeRequest(List.of(new Message("user", text))));
        assertTrue(asked.getBoolean("add_generation_prompt"));
        JSONArray messages = asked.getJSONArray("messages");
        assertEquals(1, messages.length());
        assertEquals("user", messages.getJSONObject(0).getString("role"));
        assertEquals(text, messages.getJSONObject(0).getString("content"));
    }

    @Test
    public void answersOfTokenize() throws ProtocolException {
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
