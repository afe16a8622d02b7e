package edgespec;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.function.UnaryOperator;

/**
 * A vocabulary of single bytes, and a target that repeats the question three times with a character of
 * four bytes in between, which prompt lookup drafts. An object is that target as a model on the device,
 * which can make mistakes or fail.
 */
final class Toy implements Model {
    static final int END = 256;
    static final int TURN = 257;
    static final int TURN_END = 258;
    static final int OPENING = 259;
    static final int SIZE = 260;

    private final IntList tokens = new IntList();
    private final int contextSize;
    private final int wrongEvery;
    byte[] hash = hash();
    int failAfter = Integer.MAX_VALUE;
    int decoded;
    int largest;

    /** @param wrongEvery the token after every multiple of this many tokens is wrong; 0 for none */
    Toy(int contextSize, int wrongEvery) {
        this.contextSize = contextSize;
        this.wrongEvery = wrongEvery;
    }

    @Override
    public byte[] vocabularyHash() { return hash; }

    @Override
    public int contextSize() { return contextSize; }

    int nPast() { return tokens.size(); }

    @Override
    public int[] decode(int[] added, int nRows) throws IOException {
        if (decoded++ >= failAfter) {
            throw new IOException("the engine says no");
        }
        if (tokens.size() + added.length > contextSize || added.length == 0) {
            throw new IOException(added.length + " tokens after " + tokens.size() + " of " + contextSize);
        }
        tokens.addAll(added);
        largest = Math.max(largest, added.length);
        int[] rows = new int[nRows];
        for (int i = 0; i < nRows; i++) {
            int length = tokens.size() - nRows + 1 + i;
            boolean wrong = wrongEvery > 0 && length % wrongEvery == 0;
            rows[i] = wrong ? '?' : next(tokens, length, Toy::answer);
        }
        return rows;
    }

    @Override
    public void truncate(int nPast) {
        tokens.truncate(nPast);
    }

    @Override
    public int[] encode(String text) { return bytes(text); }

    @Override
    public int[] encodeChat(List<Message> messages) { return encode(messages); }

    @Override
    public byte[] piece(int id) { return id < 256 ? new byte[] {(byte) id} : new byte[0]; }

    @Override
    public boolean isEnd(int id) { return id == END; }

    @Override
    public void close() {}

    /** Returns what stands for the vocabulary hash: devices only compare it. */
    static byte[] hash() { return "sixteen bytes...".getBytes(StandardCharsets.UTF_8); }

    static byte[] vocabulary() {
        FrameWriter out = new FrameWriter();
        out.u8(1);
        out.varint(SIZE);
        out.raw(hash());
        out.varint(1);
        out.varint(END);
        for (int id = 0; id < SIZE; id++) {
            byte[] piece = new Toy(0, 0).piece(id);
            out.varint(piece.length);
            out.raw(piece);
        }
        return out.bytes();
    }

    static int[] encode(List<Message> messages) {
        IntList found = new IntList();
        for (Message message : messages) {
            boolean answer = message.role.equals("assistant");
            found.add(answer ? OPENING : TURN);
            found.addAll(bytes(message.content));
            found.add(answer ? END : TURN_END);
        }
        found.add(OPENING);
        return found.toArray();
    }

    /** Returns the tokens of a text. */
    static int[] bytes(String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        int[] found = new int[bytes.length];
        for (int i = 0; i < found.length; i++) {
            found[i] = bytes[i] & 0xFF;
        }
        return found;
    }

    static String answer(String asked) {
        return asked + " \ud83d\ude00 " + asked + " \ud83d\ude00 " + asked + "!";
    }

    /** Returns the likeliest token after the first `length` tokens of a context. */
    static int next(IntList context, int length, UnaryOperator<String> answers) {
        int opening = lastIndex(context, length - 1, OPENING);
        int turn = lastIndex(context, opening, TURN);
        if (turn < 0) {
            return 'x';
        }
        byte[] asked = new byte[opening - turn - 2];
        for (int i = 0; i < asked.length; i++) {
            asked[i] = (byte) context.get(turn + 1 + i);
        }
        int[] answer = bytes(answers.apply(new String(asked, StandardCharsets.UTF_8)));
        int at = length - opening - 1;
        return at < answer.length ? answer[at] : END;
    }

    private static int lastIndex(IntList context, int from, int token) {
        while (from >= 0 && context.get(from) != token) {
            from--;
        }
        return from;
    }
}
