package edgespec;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;
import org.junit.Test;

/** Tests that frames are byte for byte those of Python (tests/data/protocol_vectors.json). */
public class WireTest {
    private static JSONObject vectors() throws Exception {
        return Vectors.read("protocol_vectors.json");
    }

    private static List<byte[]> messages() throws Exception {
        List<byte[]> found = new ArrayList<byte[]>();
        for (JSONObject one : Vectors.objects(vectors(), "frames")) {
            found.add(Vectors.bytes(one.getString("hex")));
        }
        return found;
    }

    @Test
    public void fieldsBecomeTheseBytes() throws Exception {
        List<JSONObject> frames = Vectors.objects(vectors(), "frames");
        assertTrue("all eleven kinds of frames are there", frames.size() >= 11);
        for (JSONObject vector : frames) {
            Frame frame = frame(vector.getJSONObject("frame"));
            assertEquals(vector.getString("name"), vector.getString("hex"), Server.hex(Wire.encode(frame)));
        }
    }

    @Test
    public void bytesBecomeTheseFields() throws Exception {
        for (JSONObject vector : Vectors.objects(vectors(), "frames")) {
            Frame expected = frame(vector.getJSONObject("frame"));
            Frame found = Wire.decode(Vectors.bytes(vector.getString("hex")));
            assertEquals(vector.getString("name"), expected.getClass(), found.getClass());
            assertArrayEquals(Wire.encode(expected), Wire.encode(found));
        }
    }

    @Test
    public void fieldsAreWhereTheyBelong() throws Exception {
        Frame.Opened opened = (Frame.Opened) Wire.decode(message("opened"));
        assertEquals(8192, opened.contextSize);
        assertEquals(31, opened.maxDraft);
        assertEquals(32, opened.maxAhead);
        assertEquals(151936, opened.vocabularySize);
        assertEquals("qwen", opened.model);
        assertArrayEquals(new long[] {8, 120000}, opened.costs[1]);
        Frame.Answer answer = (Frame.Answer) Wire.decode(message("with log-probabilities"));
        assertEquals(3, answer.round);
        assertEquals(1, answer.nAccepted);
        assertEquals(-1.25f, answer.logprobs[0].topLogprobs[1], 0);
        Frame.Begin begin = (Frame.Begin) Wire.decode(message("a conversation that goes on, all settings"));
        assertEquals(-1L, begin.seed);
        assertEquals(0x8BB98613, begin.checksum);
        assertEquals(Double.NEGATIVE_INFINITY, begin.sampling.bias.get(7), 0);
        assertEquals("gr\u00f6\u00dfer", ((Frame.Error) Wire.decode(message("refused"))).message);
    }

    @Test
    public void versionTwoIsRefusedByItsNumber() throws Exception {
        int refused = 0;
        for (JSONObject one : Vectors.objects(Vectors.read("protocol_vectors_2.json"), "frames")) {
            byte[] data = Vectors.bytes(one.getString("hex"));
            if (data[0] == 0x01 || data[0] == (byte) 0x81) {
                refused(data, "version 2");
                refused++;
            }
        }
        assertTrue("OPEN and OPENED are among the vectors", refused >= 2);
    }

    @Test
    public void checksums() throws Exception {
        for (JSONObject vector : Vectors.objects(vectors(), "checksums")) {
            Context context = new Context();
            context.extend(Vectors.ints(vector, "ids"));
            assertEquals((int) Vectors.number(vector, "crc32"), context.checksum(context.size()));
            assertTrue(context.has(context.size(), context.checksum(context.size())));
            assertTrue(!context.has(context.size() + 1, 0));
            assertTrue(!context.has(-1, 0));
        }
    }

    @Test
    public void aContextThatIsCutHasTheChecksumOfWhatIsLeft() {
        Context whole = new Context();
        whole.extend(new int[] {5, 151643, 0, 7});
        Context cut = new Context();
        cut.extend(new int[] {5, 151643, 9, 9, 9});
        cut.truncate(2);
        cut.extend(new int[] {0, 7});
        assertEquals(whole.checksum(4), cut.checksum(4));
        assertArrayEquals(new int[] {5, 151643, 0, 7}, cut.tokens().toArray());
    }

    @Test
    public void vocabularyHashes() throws Exception {
        for (JSONObject vector : Vectors.objects(vectors(), "vocabulary_hashes")) {
            JSONArray texts = vector.getJSONArray("entries");
            byte[][] entries = new byte[texts.length()][];
            for (int i = 0; i < entries.length; i++) {
                entries[i] = texts.getString(i).getBytes(FrameWriter.UTF_8);
            }
            assertEquals(vector.getString("hash"), Server.hex(Wire.vocabularyHash(entries)));
        }
    }

    @Test
    public void vocabularies() throws Exception {
        for (JSONObject vector : Vectors.objects(vectors(), "vocabularies")) {
            byte[] data = Vectors.bytes(vector.getString("hex"));
            ServerVocabulary found = new ServerVocabulary(data);
            JSONArray pieces = vector.getJSONArray("pieces");
            int[] ends = Vectors.ints(vector, "ends");
            assertEquals(pieces.length(), found.size());
            assertEquals("101112131415161718191a1b1c1d1e1f", Server.hex(found.hash()));
            for (int id = 0; id < found.size(); id++) {
                boolean end = Arrays.binarySearch(ends, id) >= 0;
                assertEquals(end, found.isEnd(id));
                assertEquals(end ? "" : pieces.get(id), new String(found.piece(id), "UTF-8"));
            }
            for (int length = 0; length < data.length; length++) {
                try {
                    new ServerVocabulary(Arrays.copyOf(data, length));
                    fail("cut to " + length + " bytes it is still a vocabulary");
                } catch (ProtocolException error) {
                    assertTrue(error.getMessage(), error.getMessage().length() > 10);
                }
            }
        }
    }

    @Test
    public void randomVocabularies() {
        Random random = new Random(3);
        for (int i = 0; i < 5000; i++) {
            byte[] data = new byte[random.nextInt(80)];
            random.nextBytes(data);
            if (data.length > 0) {
                data[0] = 1;
            }
            try {
                new ServerVocabulary(data);
            } catch (ProtocolException error) {
                assertTrue(error.getMessage().length() > 10);
            }
        }
    }

    @Test
    public void whatIsRefused() throws Exception {
        JSONArray all = vectors().getJSONArray("refused");
        for (int i = 0; i < all.length(); i++) {
            refused(Vectors.bytes(all.getString(i)), "");
        }
        refused(new byte[0], "empty");
        refused(Vectors.bytes("07"), "unknown type 7");
        refused(Vectors.bytes("048000"), "written too long");
        refused(Vectors.bytes("04ffffffffffffffffffff"), "ten bytes");
        refused(Vectors.bytes("04ffffffffffffffffff7f"), "too large");
        refused(Vectors.bytes("850001ff"), "UTF-8");
        refused(Vectors.bytes("030000" + "00000000" + "00" + "ffffffff0f"), "too large");
        refused(Vectors.bytes("8300000000" + "ffff03" + "00000000"), "too short for the 65535 things");
    }

    @Test
    public void impossibleSettings() throws Exception {
        String greedy = Server.hex(message("a prompt, greedy"));
        String zero = "0000000000000000";
        String one = "000000000000f03f";
        String minusOne = "000000000000f0bf";
        String nan = "000000000000f87f";
        String sampling = zero + one + zero + one + zero + zero;
        for (String wrong : new String[] {minusOne + one + zero, nan + one + zero, zero + zero + zero}) {
            refused(Vectors.bytes(greedy.replace(sampling, wrong + one + zero + zero)), "sampling settings");
        }
    }

    @Test
    public void everyCutIsNoticedOrIsAFrame() throws Exception {
        for (byte[] whole : messages()) {
            for (int length = 0; length < whole.length; length++) {
                byte[] cut = Arrays.copyOf(whole, length);
                try {
                    assertArrayEquals(cut, Wire.encode(Wire.decode(cut)));
                } catch (ProtocolException error) {
                    assertTrue(error.getMessage().length() > 10);
                }
            }
        }
    }

    @Test
    public void oversizedFrames() throws Exception {
        byte[] many = new byte[(1 << 20) + 9];
        many[0] = 3;
        refused(many, "more than 1048576 token ids");
        refused(Vectors.bytes("8600ffffffff07" + "61"), "too large");
        String long70000 = new String(new char[70000]).replace('\0', '\u00f6');
        Frame.Error error = (Frame.Error) Wire.decode(Wire.encode(new Frame.Error(1, long70000)));
        assertEquals(65534, error.message.getBytes(FrameWriter.UTF_8).length);
        assertEquals("", error.message.replace("\u00f6", ""));
    }

    @Test
    public void randomFramesAreFramesOrProtocolExceptions() throws Exception {
        Random random = new Random(20241121);
        List<byte[]> whole = messages();
        int[] types = {1, 2, 3, 4, 5, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86};
        int frames = 0;
        for (int i = 0; i < 40000; i++) {
            byte[] data = i % 2 == 0 ? damaged(random, whole) : new byte[random.nextInt(90)];
            if (i % 2 == 1) {
                random.nextBytes(data);
                if (data.length > 0 && i % 4 == 1) {
                    data[0] = (byte) types[random.nextInt(types.length)];
                }
            }
            try {
                byte[] again = Wire.encode(Wire.decode(data));
                assertArrayEquals(again, Wire.encode(Wire.decode(again)));
                frames++;
            } catch (ProtocolException error) {
                assertTrue(error.getMessage().length() > 10);
            }
        }
        assertTrue("some of them are frames, or the test says nothing: " + frames, frames > 1000);
    }

    private static byte[] damaged(Random random, List<byte[]> whole) {
        byte[] data = whole.get(random.nextInt(whole.size())).clone();
        data[random.nextInt(data.length)] = (byte) random.nextInt();
        return Arrays.copyOf(data, data.length + random.nextInt(3) - 1);
    }

    private static byte[] message(String name) throws Exception {
        for (JSONObject one : Vectors.objects(vectors(), "frames")) {
            if (one.getString("name").equals(name)) {
                return Vectors.bytes(one.getString("hex"));
            }
        }
        throw new AssertionError("there is no vector " + name);
    }

    private static void refused(byte[] data, String said) {
        try {
            Wire.decode(data);
            fail("this is no frame: " + Server.hex(Arrays.copyOf(data, Math.min(20, data.length))));
        } catch (ProtocolException error) {
            assertTrue(error.getMessage(), error.getMessage().contains(said));
        }
    }

    /** Returns the frame with the fields of a vector. */
    private static Frame frame(JSONObject f) throws JSONException {
        String type = f.getString("type");
        if (type.equals("OPEN")) {
            return new Frame.Open(integer(f, "version"), Vectors.bytes(f.getString("token")),
                    integer(f, "vocab_size"), Vectors.bytes(f.getString("vocab_hash")), f.getString("model"));
        } else if (type.equals("BEGIN")) {
            return new Frame.Begin(Vectors.number(f, "generation"), integer(f, "keep"),
                    integer(f, "checksum"), integer(f, "n_prompt"), sampling(f.getJSONObject("params")),
                    Vectors.number(f, "seed"), Vectors.ints(f, "ids"));
        } else if (type.equals("VERIFY")) {
            return new Frame.Verify(Vectors.number(f, "round"), integer(f, "length"),
                    integer(f, "checksum"), integer(f, "ahead"), Vectors.ints(f, "ids"));
        } else if (type.equals("MORE")) {
            return new Frame.More(Vectors.number(f, "round"));
        } else if (type.equals("CANCEL")) {
            return new Frame.Cancel();
        } else if (type.equals("OPENED")) {
            return new Frame.Opened(integer(f, "version"), Vectors.bytes(f.getString("token")),
                    integer(f, "n_ctx"), integer(f, "max_draft"), integer(f, "max_ahead"),
                    integer(f, "vocab_size"), Vectors.bytes(f.getString("vocab_hash")), f.getString("model"),
                    costs(f.getJSONArray("costs")));
        } else if (type.equals("PROGRESS")) {
            return new Frame.Progress(Vectors.number(f, "generation"), Vectors.number(f, "n_done"));
        } else if (type.equals("ANSWER")) {
            return new Frame.Answer(Vectors.number(f, "round"), integer(f, "accepted"),
                    integer(f, "token"), Vectors.number(f, "server_us"),
                    logprobs(Vectors.objects(f, "logprobs")));
        } else if (type.equals("NEED")) {
            return new Frame.Need(Vectors.number(f, "have"), integer(f, "checksum"));
        } else if (type.equals("BUSY")) {
            return new Frame.Busy(Vectors.number(f, "retry_ms"), f.getString("message"));
        }
        assertEquals("ERROR", type);
        return new Frame.Error(integer(f, "code"), f.getString("message"));
    }

    private static int integer(JSONObject fields, String name) throws JSONException {
        return (int) Vectors.number(fields, name);
    }

    private static Sampling sampling(JSONObject params) throws JSONException {
        Sampling found = new Sampling();
        found.temperature = params.getDouble("temperature");
        found.topP = params.getDouble("top_p");
        found.minP = params.getDouble("min_p");
        found.repetitionPenalty = params.getDouble("repetition_penalty");
        found.presencePenalty = params.getDouble("presence_penalty");
        found.frequencyPenalty = params.getDouble("frequency_penalty");
        found.topK = integer(params, "top_k");
        found.logprobs = params.isNull("logprobs") ? -1 : integer(params, "logprobs");
        JSONObject biases = params.getJSONObject("logit_bias");
        for (Iterator<String> id = biases.keys(); id.hasNext(); ) {
            String name = id.next();
            boolean infinite = biases.get(name) instanceof JSONObject; // {"-inf": true}: JSON has no infinity
            found.bias.put(Integer.valueOf(name), infinite ? Double.NEGATIVE_INFINITY : biases.getDouble(name));
        }
        return found;
    }

    private static long[][] costs(JSONArray pairs) throws JSONException {
        long[][] found = new long[pairs.length()][];
        for (int i = 0; i < found.length; i++) {
            found[i] = new long[] {pairs.getJSONArray(i).getLong(0), pairs.getJSONArray(i).getLong(1)};
        }
        return found;
    }

    private static Frame.Logprob[] logprobs(List<JSONObject> all) throws JSONException {
        Frame.Logprob[] found = new Frame.Logprob[all.size()];
        for (int i = 0; i < found.length; i++) {
            JSONArray top = all.get(i).getJSONArray("top");
            int[] ids = new int[top.length()];
            float[] values = new float[top.length()];
            for (int j = 0; j < ids.length; j++) {
                ids[j] = top.getJSONArray(j).getInt(0);
                values[j] = (float) top.getJSONArray(j).getDouble(1);
            }
            found[i] = new Frame.Logprob((float) all.get(i).getDouble("logprob"), ids, values);
        }
        return found;
    }
}
