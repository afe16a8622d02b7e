package edgespec.app;

import edgespec.ScriptedServer;
import java.awt.Color;
import java.awt.Graphics2D;
import java.awt.image.BufferedImage;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import javax.imageio.ImageIO;

/**
 * Runs the unmodified Activity and draws three screens: a conversation in the light theme, an answer
 * that is being generated in the dark theme, and the settings.
 *
 * <p>Arguments: the file to write; the address and key of a real server, or nothing for a scripted one.
 */
public final class Picture {
    private static final String LONG = "Say this again: The red robot drives to the door and waits there "
            + "until somebody opens it.";
    private static final String REPEATED = "The red robot drives to the door and waits there until somebody "
            + "opens it.";
    private static final String SHORT = "Name the capital of France.";
    private static final String CAPITAL = "The capital of France is Paris.";
    private static final int GAP = 24;

    private Picture() {
    }

    public static void main(String[] arguments) throws IOException {
        File folder = Files.createTempDirectory("edgespec-picture").toFile();
        ScriptedServer scripted = new ScriptedServer("", LONG, REPEATED, SHORT, CAPITAL);
        boolean real = arguments.length > 1;
        final Phone phone = new Phone(new File("app/res"), folder);
        phone.launch();
        phone.setServer(real ? arguments[1] : scripted.address(), arguments.length > 2 ? arguments[2] : "");
        phone.menu(R.id.show_drafts);
        scripted.allow(1000);
        answered(phone, SHORT);
        answered(phone, LONG);
        BufferedImage day = phone.draw();
        phone.configure(true, 1);
        scripted.allowOnly(4);
        phone.ask(SHORT);
        phone.until("some of the answer is there", new Phone.Condition() {
            @Override
            public boolean holds() {
                return phone.lastText().length() > 10;
            }
        });
        BufferedImage night = phone.draw();
        scripted.allow(1000);
        phone.until("the answer is there", idle(phone));
        phone.configure(false, 1);
        phone.menu(R.id.settings);
        phone.write(R.id.server, "wss://my-computer:8080");
        phone.write(R.id.key, "0123456789abcdef");
        BufferedImage settings = phone.draw();
        ImageIO.write(beside(day, night, settings), "png", new File(arguments[0]));
        System.exit(0);
    }

    private static void answered(Phone phone, String question) {
        phone.ask(question);
        phone.until("the answer is there", idle(phone));
    }

    private static Phone.Condition idle(final Phone phone) {
        return new Phone.Condition() {
            @Override
            public boolean holds() {
                return !phone.app.conversation.isAnswering() && phone.text(R.id.send).equals("Send");
            }
        };
    }

    private static BufferedImage beside(BufferedImage... screens) {
        int width = GAP;
        for (BufferedImage screen : screens) {
            width += screen.getWidth() + GAP;
        }
        BufferedImage all = new BufferedImage(
                width, screens[0].getHeight() + 2 * GAP, BufferedImage.TYPE_INT_RGB);
        Graphics2D on = all.createGraphics();
        on.setColor(new Color(0xB8BCC4));
        on.fillRect(0, 0, all.getWidth(), all.getHeight());
        int x = GAP;
        for (BufferedImage screen : screens) {
            on.drawImage(screen, x, GAP, null);
            x += screen.getWidth() + GAP;
        }
        on.dispose();
        return all;
    }
}
