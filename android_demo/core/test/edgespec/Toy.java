package edgespec;

import java.util.List;

/**
 * A vocabulary of single bytes, and a target that repeats the question three times with a character of
 * four bytes in between. Prompt lookup drafts such repetitions.
 */
final class Toy implements Vocabulary {
    static final int END = 256;
    static final int TURN = 257;
    static final int TURN_END = 258;
    static final int OPENING = 259;
    static final int SIZE = 260;

    @Override
    public byte[] piece(int id) {
        return id < 256 ? new byte[] {(byte) id} : new byte[0];
    }

    @Override
    public boolean isEnd(int id) {
        return id == END;
    }

    static byte[] hash() {
        byte[][] entries = new byte[SIZE][];
        for (int id = 0; id < SIZE; id++) {
            entries[id] = id < 256 ? new byte[] {(byte) id} : ("<" + id + ">").getBytes(FrameWriter.UTF_8);
        }
        return Wire.vocabularyHash(entries);
    }

    static byte[] vocabulary() {
        FrameWriter out = new FrameWriter();
        out.u8(1);
        out.varint(SIZE);
        out.raw(hash());
        out.varint(1);
        out.varint(END);
        for (int id = 0; id < SIZE; id++) {
            byte[] piece = new Toy().piece(id);
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
            add(found, message.content);
            found.add(answer ? END : TURN_END);
        }
        found.add(OPENING);
        return found.toArray();
    }

    private static void add(IntList found, String text) {
        for (byte one : text.getBytes(FrameWriter.UTF_8)) {
            found.add(one & 0xFF);
        }
    }

    static String answer(String asked) {
        return asked + " \ud83d\ude00 " + asked + " \ud83d\ude00 " + asked + "!";
    }

    /** Returns the target's likeliest token after the first `length` tokens of a context. */
    static int next(IntList context, int length) {
        int opening = length - 1;
        while (opening >= 0 && context.get(opening) != OPENING) {
            opening--;
        }
        int turn = opening;
        while (turn >= 0 && context.get(turn) != TURN) {
            turn--;
        }
        if (opening < 0 || turn < 0) {
            return 'x';
        }
        byte[] asked = new byte[opening - turn - 2];
        for (int i = 0; i < asked.length; i++) {
            asked[i] = (byte) context.get(turn + 1 + i);
        }
        byte[] answer = answer(new String(asked, FrameWriter.UTF_8)).getBytes(FrameWriter.UTF_8);
        int at = length - opening - 1;
        return at < answer.length ? answer[at] & 0xFF : END;
    }
}
